"""A decoder with tied embeddings and rotary positions, of x-transformers."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

WORDS = 40


def model():
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    return AutoregressiveWrapper(
        TransformerWrapper(num_tokens=WORDS, max_seq_len=16, attn_layers=layers, tie_embedding=True)
    )


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [torch.randint(WORDS, (4, 12), generator=draws) for _ in range(4)]


def loss(model, batch):
    return model(batch)
