"""A Mamba, a state space model, of transformers."""

import torch
from transformers import MambaConfig, MambaForCausalLM

WORDS = 40


def model():
    return MambaForCausalLM(MambaConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, state_size=4))


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [torch.randint(WORDS, (4, 12), generator=draws) for _ in range(4)]


def loss(model, batch):
    return model(input_ids=batch, labels=batch).loss
