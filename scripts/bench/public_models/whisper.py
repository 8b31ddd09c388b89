"""A Whisper on noise, with a frozen table of positions, of transformers."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

WORDS = 40


def model():
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=WORDS, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
            decoder_ffn_dim=32, max_source_positions=16, max_target_positions=16,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            suppress_tokens=None, begin_suppress_tokens=None,
        )
    )  # fmt: skip


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [
        {"sound": torch.randn(2, 8, 32, generator=draws), "words": torch.randint(WORDS, (2, 6), generator=draws)}
        for _ in range(4)
    ]


def loss(model, batch):
    return model(input_features=batch["sound"], labels=batch["words"]).loss
