"""A GPT-2 with tied embeddings and dropout, of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import GPT2Config, GPT2LMHeadModel


def model():
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2))
