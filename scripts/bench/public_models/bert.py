"""A BERT for masked words, of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import BertConfig, BertForMaskedLM


def model():
    return BertForMaskedLM(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
    )
