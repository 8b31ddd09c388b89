"""A BERT for masked words, of transformers."""

import torch
from transformers import BertConfig, BertForMaskedLM

WORDS = 40


def model():
    return BertForMaskedLM(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
    )


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [torch.randint(WORDS, (4, 12), generator=draws) for _ in range(4)]


def loss(model, batch):
    return model(input_ids=batch, labels=batch).loss
