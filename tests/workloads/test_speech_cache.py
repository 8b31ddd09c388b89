"""The cache of prepared features: made once, whole or not at all."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from istbench.errors import UserError
from istbench.workloads.base import DataSource, Progress
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data.cache import SplitWriter, open_split, prepared

LABELS = np.arange(10)
IS_TEST = np.arange(10) % 3 == 0


def features(first: int, count: int) -> np.ndarray:
    """Clip i has i in every feature."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], 4096, axis=1)


def fill(directory: Path) -> None:
    """Write ten clips in three pieces, out of order."""
    writer = SplitWriter(directory, LABELS, IS_TEST)
    for first, count in ((7, 3), (0, 4), (4, 3)):
        writer.write(first, features(first, count))
    writer.close()


def prepare(cache: Path, progress: Progress, key: Mapping[str, Any] | None = None, fill: Any = fill) -> DataSource:
    return prepared(cache, "kind", key or {"a": 1}, fill, progress)


def start_preparing(cache: Path, clips_per_word: int) -> "subprocess.Popen[str]":
    """A process that prepares a synthetic corpus: prints its progress, then the fingerprint."""
    script = f"""
from pathlib import Path
from istbench.workloads.speech import Speech, SpeechOptions
workload = Speech(SpeechOptions(clips_per_word={clips_per_word}))
source = workload.prepare(None, Path({str(cache)!r}), lambda *event: print(*event, flush=True))
print(source.fingerprint)
"""
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_clips_keep_their_order_within_their_split(tmp_path: Path, no_progress: Progress) -> None:
    source = prepare(tmp_path, no_progress)
    assert (source.train, source.test) == (6, 4)
    for split, members in (("train", ~IS_TEST), ("test", IS_TEST)):
        arrays = open_split(Path(source.path), split)
        assert isinstance(arrays.features, np.memmap)
        assert np.array_equal(arrays.labels, LABELS[members])
        assert np.array_equal(arrays.features, features(0, 10)[members])


def test_the_second_time_nothing_is_done(tmp_path: Path, no_progress: Progress) -> None:
    def never(directory: Path) -> None:
        raise AssertionError("filled again")

    source = prepare(tmp_path, no_progress)
    assert prepare(tmp_path, no_progress, fill=never) == source
    other = prepare(tmp_path, no_progress, {"a": 2})
    assert other.path != source.path
    assert other.fingerprint == source.fingerprint


def test_a_filling_that_fails_leaves_nothing(tmp_path: Path, no_progress: Progress) -> None:
    def fail(directory: Path) -> None:
        (directory / "train_labels.npy").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, no_progress, fill=fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert prepare(tmp_path, no_progress).train == 6


def test_a_damaged_directory_is_made_again(tmp_path: Path, no_progress: Progress) -> None:
    source = prepare(tmp_path, no_progress)
    file = Path(source.path) / "test_features.npy"
    os.truncate(file, 1000)
    with pytest.raises(UserError, match="damaged"):
        open_split(Path(source.path), "test")
    assert prepare(tmp_path, no_progress) == source
    open_split(Path(source.path), "test")


def test_a_killed_process_leaves_no_half_cache(tmp_path: Path, no_progress: Progress) -> None:
    process = start_preparing(tmp_path, clips_per_word=12)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not list((tmp_path / "speech").glob("synthetic-*"))
    speech = Speech(SpeechOptions(clips_per_word=12))
    source = speech.prepare(None, tmp_path, no_progress)
    assert source.train + source.test == 12 * 35
    assert not list((tmp_path / "speech").glob(".*.partial"))


def test_two_processes_prepare_at_once(tmp_path: Path) -> None:
    processes = [start_preparing(tmp_path, clips_per_word=3) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0].splitlines()[-1] for process in processes]
    assert len(set(answers)) == 1
    assert len(answers[0]) == 64
    assert len(list((tmp_path / "speech").glob("synthetic-*"))) == 1


def test_a_full_disk_is_said_so(tmp_path: Path, no_progress: Progress) -> None:
    def full(directory: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserError, match=f"cannot write prepared data to {tmp_path}: the disk is full"):
        prepare(tmp_path, no_progress, fill=full)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, no_progress: Progress) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(UserError, match=f"cannot write prepared data to {occupied}/cache: "):
        prepare(occupied / "cache", no_progress)
