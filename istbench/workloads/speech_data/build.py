"""Prepare a directory of features, from recorded or synthetic clips, and open it.

A prepared directory holds `train_features.npy`, `train_labels.npy`, `train_mean.npy`, `test_features.npy`,
`test_labels.npy` and `prepared.json`. Every process maps it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.numbers import Natural
from istbench.workloads import prepared as shared
from istbench.workloads.base import DataSource, Progress
from istbench.workloads.prepared import SPLITS, Labelled, SplitWriter, damaged, labelled, map_array, source_of
from istbench.workloads.speech_data import espeak, synthetic
from istbench.workloads.speech_data.features import FEATURES, VERSION, extractor
from istbench.workloads.speech_data.recordings import find_recordings
from istbench.workloads.speech_data.synthetic import Corpus
from istbench.workloads.speech_data.words import CLIP_SAMPLES, MOST_WORDS, WORDS

SYNTHETIC_NOTE = (
    "synthetic speech data: words spoken by eSpeak NG, not recordings "
    "(for these: --data DIR, or `istbench data speech --source download`)"
)
_MEAN = "train_mean.npy"
CHUNK_CLIPS = 200  # synthetic clips that are read at a time
_RECORDED_CHUNK = 256
_CLIP_BYTES = CLIP_SAMPLES * 2

Word = Annotated[str, Meta(min_length=1, max_length=255)]


class SpeechSummary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json.

    Attributes:
        words: the words in the order of their labels.
        converted: number of clips in both splits that were not 16 kHz mono.
    """

    words: Annotated[tuple[Word, ...], Meta(min_length=2, max_length=MOST_WORDS)]
    converted: Natural


def open_split(directory: Path, summary: SpeechSummary, split: str) -> Labelled:
    """Map the features of `split`, float32 [n, 4096].

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    features = map_array(directory, f"{split}_features.npy", np.float32, 2)
    if features.shape[1] != FEATURES:
        raise damaged(directory, f"{split}_features.npy has {features.shape[1]} features of a clip")
    return labelled(directory, split, features, len(summary.words), "words")


def open_mean(directory: Path) -> np.ndarray:
    """The mean features of the training clips of a prepared directory, float32 [4096] in dB.

    Raises:
        UserError: if the file is missing or damaged.
    """
    mean = np.array(map_array(directory, _MEAN, np.float32, 1))
    if mean.shape != (FEATURES,) or not np.isfinite(mean).all():
        raise damaged(directory, f"{_MEAN} does not have {FEATURES} numbers")
    return mean


def prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    words: tuple[str, ...],
    fill: Callable[[Path], int],
    progress: Progress,
) -> tuple[Path, SpeechSummary]:
    """The prepared directory of (`kind`, `key`) under `cache`. `fill(directory)` makes it unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        words: in the order of their labels.
        fill: writes the arrays of both splits into an empty directory; returns the number of converted clips.

    Raises:
        UserError: if `cache` is not writable or the disk is full.
    """

    def make(directory: Path) -> SpeechSummary:
        converted = fill(directory)
        train, test = (map_array(directory, f"{split}_features.npy", np.float32, 2) for split in SPLITS)
        names = [f"{split}_{part}.npy" for split in SPLITS for part in ("features", "labels")]
        fingerprint = shared.fingerprint(directory, names)
        np.save(directory / _MEAN, train.mean(0, dtype=np.float64).astype(np.float32))
        return SpeechSummary(
            fingerprint=fingerprint,
            words=words,
            train=len(train),
            test=len(test),
            converted=converted,
        )

    def opened(directory: Path, summary: SpeechSummary, split: str) -> Labelled:
        open_mean(directory)  # refuses a damaged one
        return open_split(directory, summary, split)

    return shared.prepared(cache, kind, VERSION, key, SpeechSummary, make, opened, progress)


def feature_writer(directory: Path, labels: np.ndarray, is_test: np.ndarray) -> SplitWriter:
    """A writer for features of clips, float32 [b, 4096], with words `labels` and splits `is_test`."""
    return SplitWriter(directory, labels, is_test, name="features", shape=(FEATURES,), kind=np.float32)


def prepare_recorded(data: Path, cache: Path, progress: Progress) -> DataSource:
    """Prepare features of the recorded words in directory `data`, a folder each, under `cache`.

    Raises:
        UserError: for a directory in the wrong layout, a broken recording, or a cache that is not writable.
    """
    recordings = find_recordings(data)

    def fill(directory: Path) -> int:
        _require_room(directory, len(recordings.paths), "make room there")
        converted = 0

        def chunks() -> Iterator[tuple[int, np.ndarray]]:
            nonlocal converted
            for number, clips in enumerate(recordings.chunks(_RECORDED_CHUNK)):
                converted += sum(clip.converted for clip in clips)
                yield number * _RECORDED_CHUNK, np.stack([clip.samples for clip in clips])

        _write_features(chunks(), directory, recordings.labels, recordings.is_test, progress)
        return converted

    kind, name, whole = recordings.data_set
    path, summary = prepared(cache, kind, recordings.cache_key(), recordings.words, fill, progress)
    note = "; ".join(filter(None, (recordings.note, _conversion_note(summary))))
    return source_of(path, summary, kind=kind, name=name, unit="clips", note=note, whole=whole)


def prepare_synthetic(corpus: Corpus, cache: Path, progress: Progress) -> DataSource:
    """Prepare features of the clips of `corpus` under `cache`.

    Raises:
        UserError: if it is not in `cache` and eSpeak NG is missing, or the cache is not writable.
    """

    def fill(directory: Path) -> int:
        espeak.require()
        _require_room(directory, corpus.size, "use fewer clips_per_word")
        clips = ((first, pcm.astype(np.float32) / 32_768) for first, pcm in _render(corpus))
        _write_features(clips, directory, corpus.labels, corpus.is_test, progress)
        return 0

    path, summary = prepared(cache, "synthetic", asdict(corpus), WORDS, fill, progress)
    return source_of(path, summary, kind="synthetic", name="SYNTHETIC speech", unit="clips", note=SYNTHETIC_NOTE)


def _require_room(directory: Path, clips: int, way_out: str) -> None:
    shared.require_room(directory, clips * FEATURES * 4, f"{clips:,} clips", way_out)


def _conversion_note(summary: SpeechSummary) -> str:
    if not summary.converted:
        return ""
    clips = summary.train + summary.test
    return f"{summary.converted:,} of {clips:,} clips were resampled or mixed down to 16 kHz mono"


def _write_features(
    chunks: Iterable[tuple[int, np.ndarray]],
    directory: Path,
    labels: np.ndarray,
    is_test: np.ndarray,
    progress: Progress,
) -> None:
    """Write the features of `chunks`: (number of the first clip, float32 [b, 16000])."""
    extract = extractor()
    done = 0
    progress("speech features", done, len(labels))
    with closing(feature_writer(directory, labels, is_test)) as writer:
        for first, clips in chunks:
            writer.write(first, extract(torch.from_numpy(clips)).numpy())
            done += len(clips)
            progress("speech features", done, len(labels))


def _render(corpus: Corpus) -> Iterator[tuple[int, np.ndarray]]:
    """Render `corpus` in one process per core; yields (first clip, int16 [b, 16000]), blocks interleaved."""
    waiting = list(range(corpus.blocks))[::-1]
    with ExitStack() as stack:
        running: list[_Renderer] = []
        while running or waiting:
            while waiting and len(running) < cores():
                running.append(stack.enter_context(_Renderer(corpus, waiting.pop())))
            for renderer in list(running):
                yield renderer.read()
                if renderer.is_done:
                    running.remove(renderer)


class _Renderer:
    """A process that renders one block. It blocks on its pipe until the clips are read."""

    def __init__(self, corpus: Corpus, block: int) -> None:
        self._clips = corpus.block_range(block)
        numbers = (block, corpus.clips_per_word, corpus.seed)
        command = [sys.executable, "-P", "-m", synthetic.__name__, *map(str, numbers)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)

    def __enter__(self) -> "_Renderer":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def is_done(self) -> bool:
        return not self._clips

    def read(self) -> tuple[int, np.ndarray]:
        """The next clips: number of the first, int16 [b, 16000]."""
        count = min(CHUNK_CLIPS, len(self._clips))
        assert self._process.stdout is not None
        raw = self._process.stdout.read(count * _CLIP_BYTES)
        if len(raw) < count * _CLIP_BYTES:
            self._fail()
        first, self._clips = self._clips[0], self._clips[count:]
        return first, np.frombuffer(raw, np.int16).reshape(count, CLIP_SAMPLES)

    def _fail(self) -> None:
        _, stderr = self._process.communicate()
        lines = stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {self._process.returncode}"
        raise UserError(f"rendering the synthetic speech failed: {reason}; or give recorded words with --data DIR")
