"""A GPT-2 with tied embeddings and dropout, of transformers."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

WORDS = 40


def model():
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2))


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [torch.randint(WORDS, (4, 12), generator=draws) for _ in range(4)]


def loss(model, batch):
    return model(input_ids=batch, labels=batch).loss
