"""A Mixtral: each word takes two of eight experts, of transformers."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

WORDS = 40


def model():
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=32, num_local_experts=8, output_router_logits=True,
        )
    )  # fmt: skip


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [torch.randint(WORDS, (4, 12), generator=draws) for _ in range(4)]


def loss(model, batch):
    return model(input_ids=batch, labels=batch).loss
