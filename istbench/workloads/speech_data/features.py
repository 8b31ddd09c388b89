"""Mel spectrogram features of one-second clips, as in the experiments of Independent Subnet Training.

128 mel bands (Slaney's scale and area normalisation), a window of 2048 samples, hop 512, centred with zero
padding, power in dB relative to the clip's maximum, at least -80 dB. The results equal librosa's `melspectrogram`
and `power_to_db(ref=max)`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from istbench.workloads.speech_data.words import CLIP_RATE, CLIP_SAMPLES

BANDS = 128
WINDOW = 2_048
HOP = 512
FRAMES = 1 + CLIP_SAMPLES // HOP
FEATURES = BANDS * FRAMES
FLOOR_DB = -80.0
_SMALLEST_POWER = 1e-10

VERSION = 2
"""Part of every cache key. Raise it when the features of a clip or the other arrays change."""


def extractor() -> Callable[[Tensor], Tensor]:
    """A function from clips, float32 [b, 16000] from -1 to 1, to features, float32 [b, 4096] in dB.

    A clip's features are its spectrogram [128 bands, 32 frames], flattened, from -80 to 0 dB.
    """
    from torchaudio.transforms import MelSpectrogram

    spectrogram = MelSpectrogram(
        sample_rate=CLIP_RATE,
        n_fft=WINDOW,
        hop_length=HOP,
        n_mels=BANDS,
        power=2.0,
        center=True,
        pad_mode="constant",
        mel_scale="slaney",
        norm="slaney",
    )

    @torch.no_grad()
    def extract(clips: Tensor) -> Tensor:
        power = spectrogram(clips).flatten(1).clamp_(min=_SMALLEST_POWER)
        decibels: Tensor = power.log10_().mul_(10)
        return decibels.sub_(decibels.amax(1, keepdim=True)).clamp_(min=FLOOR_DB)

    return extract
