"""A decoder with tied embeddings and rotary positions, of x-transformers."""

from of_words import WORDS
from of_words import data as data
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper


def model():
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    return AutoregressiveWrapper(
        TransformerWrapper(num_tokens=WORDS, max_seq_len=16, attn_layers=layers, tie_embedding=True)
    )


def loss(model, batch):
    return model(batch)
