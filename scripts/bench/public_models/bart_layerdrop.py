"""A BART whose layers drop out at random (LayerDrop), of transformers."""

from of_words import WORDS
from of_words import data as data
from of_words import loss as loss
from transformers import BartConfig, BartForConditionalGeneration


def model():
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=WORDS, d_model=16, encoder_layers=3, decoder_layers=3, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32,
            encoder_layerdrop=0.3, decoder_layerdrop=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=2, forced_eos_token_id=None,
        )
    )  # fmt: skip
