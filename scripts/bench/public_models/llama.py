"""A Llama with grouped keys, of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import LlamaConfig, LlamaForCausalLM


def model():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=32,
        )
    )
