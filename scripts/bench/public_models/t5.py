"""A T5: encoder and decoder share an embedding, of transformers."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

WORDS = 40


def model():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    )


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [torch.randint(WORDS, (4, 12), generator=draws) for _ in range(4)]


def loss(model, batch):
    return model(input_ids=batch, labels=batch).loss
