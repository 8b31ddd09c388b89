"""A T5: encoder and decoder share an embedding, of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import T5Config, T5ForConditionalGeneration


def model():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    )
