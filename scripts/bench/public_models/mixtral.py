"""A Mixtral: each word takes two of eight experts, of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import MixtralConfig, MixtralForCausalLM


def model():
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=32, num_local_experts=8, output_router_logits=True,
        )
    )  # fmt: skip
