"""A wav2vec 2.0 with masked spans, LayerDrop and weight norm, of transformers."""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

WORDS = 40


def model():
    return Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
            conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2, layerdrop=0.3, mask_time_length=2,
            ctc_loss_reduction="mean", ctc_zero_infinity=True,
        )
    )  # fmt: skip


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [
        {"sound": torch.randn(2, 400, generator=draws), "words": torch.randint(1, WORDS, (2, 5), generator=draws)}
        for _ in range(4)
    ]


def loss(model, batch):
    return model(input_values=batch["sound"], labels=batch["words"]).loss
