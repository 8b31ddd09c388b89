"""Fixtures of the workload tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from istbench.workloads.base import Progress
from istbench.workloads.speech_data.words import CLIP_RATE, WORDS

# At 12 and 94 % by the split's hash: the first speaker is in the test split, the other in the training split.
SPEAKERS = ("speaker7", "speaker0")


@pytest.fixture
def no_progress() -> Progress:
    """A progress callback that shows nothing."""
    return lambda what, done, total: None


@pytest.fixture
def recordings(tmp_path: Path) -> Callable[..., Path]:
    """Make a directory in the official layout: one clip of every word by a test and by a training speaker."""
    import soundfile

    def make(name: str = "data") -> Path:
        root = tmp_path / name
        draw = np.random.default_rng(1)
        for word in WORDS:
            (root / word).mkdir(parents=True)
            for speaker in SPEAKERS:
                tone = draw.uniform(-0.5, 0.5, int(draw.integers(12_000, 16_500)))
                soundfile.write(root / word / f"{speaker}_nohash_0.wav", tone, CLIP_RATE, subtype="PCM_16")
        return root

    return make
