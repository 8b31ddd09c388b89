"""Fixtures of the workload tests."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from istbench.workloads.speech_data.words import CLIP_RATE, WORDS

# At 12 and 94 % by the split's hash: the first speaker is in the test split, the other in the training split.
SPEAKERS = ("speaker7", "speaker0")


@pytest.fixture
def no_progress():
    """A progress callback that shows nothing."""
    return lambda what, done, total: None


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A directory whose entries no one may see. Root may see any, so a change of its mode would not do."""
    folder, stat = tmp_path / "locked", Path.stat
    folder.mkdir()

    def refuse(path, **how):
        if folder in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refuse)
    return folder


@pytest.fixture
def one_free_gigabyte(monkeypatch):
    """A large disk, almost full."""
    usage = SimpleNamespace(total=2**40, free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


@pytest.fixture
def recordings(tmp_path):
    """Make a directory in the official layout: one clip of every word by a test and by a training speaker."""
    import soundfile

    def make(name="data"):
        root = tmp_path / name
        draw = np.random.default_rng(1)
        for word in WORDS:
            (root / word).mkdir(parents=True)
            for speaker in SPEAKERS:
                tone = draw.uniform(-0.5, 0.5, int(draw.integers(12_000, 16_500)))
                soundfile.write(root / word / f"{speaker}_nohash_0.wav", tone, CLIP_RATE, subtype="PCM_16")
        return root

    return make
