"""A Mamba, a state space model, of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import MambaConfig, MambaForCausalLM


def model():
    return MambaForCausalLM(MambaConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, state_size=4))
