"""Prepare a directory of features, from recorded or synthetic clips, and open it.

A prepared directory holds `train_features.npy`, `train_labels.npy`, `train_mean.npy`, `test_features.npy`,
`test_labels.npy` and `prepared.json`. Every process maps it.
"""

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.numbers import Natural
from istbench.workloads import prepared as shared
from istbench.workloads.base import DataSource, ShowProgress
from istbench.workloads.prepared import (
    Chunk,
    Labelled,
    damaged,
    in_order,
    labelled,
    map_array,
    source_of,
    write_samples,
)
from istbench.workloads.speech_data import espeak, synthetic
from istbench.workloads.speech_data.clip import read_clip
from istbench.workloads.speech_data.features import FEATURES, VERSION, extractor
from istbench.workloads.speech_data.recordings import Recordings, find_recordings
from istbench.workloads.speech_data.synthetic import Corpus
from istbench.workloads.speech_data.words import CLIP_SAMPLES, MOST_WORDS, WORDS

SYNTHETIC_NOTE = (
    "synthetic speech data: words spoken by eSpeak NG, not recordings "
    "(for these: --data DIR, or `istbench data speech --source download`)"
)
_MEAN = "train_mean.npy"
CHUNK_CLIPS = 200  # synthetic clips whose features are computed at a time
_READERS, _RECORDED_CHUNK = 4, 256

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
    """Map the features of `split`, float32 [n, 4096]; raises as `map_array`."""
    features = map_array(directory, f"{split}_features.npy", np.float32, 2)
    if features.shape[1] != FEATURES:
        raise damaged(directory, f"{split}_features.npy has {features.shape[1]} features of a clip")
    return labelled(directory, split, features, len(summary.words), "words")


def open_mean(directory: Path) -> np.ndarray:
    """The mean features of the training clips in `directory`, float32 [4096] in dB; raises as `map_array`."""
    mean = np.array(map_array(directory, _MEAN, np.float32, 1))
    if mean.shape != (FEATURES,) or not np.isfinite(mean).all():
        raise damaged(directory, f"{_MEAN} does not have {FEATURES} numbers")
    return mean


def prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    words: tuple[str, ...],
    count: int,
    chunks: Iterable[Chunk],
    progress: ShowProgress,
    *,
    converted: Callable[[], int] = int,
    way_out: str = "make room there",
) -> tuple[Path, SpeechSummary]:
    """The prepared directory of (`kind`, `key`) under `cache`. It is made unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        words: in the order of their labels.
        chunks: features of `count` clips, float32 [b, 4096]. converted: the number of converted clips behind them.
        way_out: of the error for a disk without room.

    Raises:
        UserError: if `cache` is not writable or the disk is full; and errors of `chunks`.
    """

    def make(directory: Path) -> SpeechSummary:
        shared.require_room(directory, count * FEATURES * 4, f"{count:,} clips", way_out)
        written = write_samples(directory, "features", np.float32, (FEATURES,), chunks)
        train = map_array(directory, "train_features.npy", np.float32, 2)
        np.save(directory / _MEAN, train.mean(0, dtype=np.float64).astype(np.float32))
        return SpeechSummary(**written, words=words, converted=converted())

    def opened(directory: Path, summary: SpeechSummary, split: str) -> Labelled:
        open_mean(directory)  # refuses a damaged one
        return open_split(directory, summary, split)

    return shared.prepared(cache, kind, VERSION, key, SpeechSummary, make, opened, progress)


def prepare_recorded(data: Path, cache: Path, progress: ShowProgress) -> DataSource:
    """Prepare features of the recorded words in directory `data`, a folder each, under `cache`.

    Raises:
        UserError: for a directory in the wrong layout, a broken recording, or a cache that is not writable.
    """
    recordings = find_recordings(data)
    converted = 0

    def clips() -> Iterator[np.ndarray]:
        nonlocal converted
        read = in_order(_READERS, read_clip, recordings.paths)
        while chunk := list(islice(read, _RECORDED_CHUNK)):
            converted += sum(clip.converted for clip in chunk)
            yield np.stack([clip.samples for clip in chunk])

    chunks = _features(clips(), recordings, progress)
    kind, name, whole = recordings.data_set
    key, words, count = recordings.cache_key(), recordings.words, len(recordings.paths)
    path, summary = prepared(cache, kind, key, words, count, chunks, progress, converted=lambda: converted)
    total = summary.train + summary.test
    line = f"{summary.converted:,} of {total:,} clips were resampled or mixed down to 16 kHz mono"
    note = "; ".join(filter(None, (recordings.note, line if summary.converted else "")))
    return source_of(path, summary, kind=kind, name=name, unit="clips", note=note, whole=whole)


def prepare_synthetic(corpus: Corpus, cache: Path, progress: ShowProgress) -> DataSource:
    """Prepare features of the clips of `corpus` under `cache`.

    Raises:
        UserError: if it is not in `cache` and eSpeak NG is missing, or the cache is not writable.
    """
    chunks, way_out = _features(_render(corpus), corpus, progress), "use fewer clips_per_word"
    path, summary = prepared(
        cache, "synthetic", asdict(corpus), WORDS, corpus.size, chunks, progress, way_out=way_out
    )
    return source_of(path, summary, kind="synthetic", name="SYNTHETIC speech", unit="clips", note=SYNTHETIC_NOTE)


def _features(chunks: Iterable[np.ndarray], of: Recordings | Corpus, progress: ShowProgress) -> Iterator[Chunk]:
    """The features of `chunks` of clips, float32 [b, 16000], which are those `of` a corpus in its order."""
    extract = extractor()
    done = 0
    progress("speech features", done, len(of.labels))
    for clips in chunks:
        own = slice(done, done + len(clips))
        yield extract(torch.from_numpy(clips)).numpy(), of.labels[own], of.is_test[own]
        done += len(clips)
        progress("speech features", done, len(of.labels))


def _render(corpus: Corpus) -> Iterator[np.ndarray]:
    """Render `corpus` in one process per core; yields its clips in their order, float32 [b, 16000]."""
    espeak.require()
    blocks = iter(range(corpus.blocks))
    running = deque[tuple[subprocess.Popen[bytes], Future[tuple[bytes, bytes]]]]()  # an ended one keeps its output

    def end() -> None:
        for process, _ in running:
            process.kill()

    # The stack ends before the pool: a killed process ends the thread that reads from it.
    with ThreadPoolExecutor(cores()) as readers, ExitStack() as stack:
        stack.callback(end)

        def start(block: int) -> tuple[subprocess.Popen[bytes], Future[tuple[bytes, bytes]]]:
            numbers = (block, corpus.clips_per_word, corpus.seed)
            command = [sys.executable, "-P", "-m", synthetic.__name__, *map(str, numbers)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
            return process, readers.submit(process.communicate)

        running.extend(map(start, islice(blocks, cores())))
        while running:
            process, output = running[0]
            rendered, stderr = output.result()
            running.popleft()
            running.extend(map(start, islice(blocks, 1)))
            if process.returncode:
                lines = stderr.decode(errors="replace").strip().splitlines()
                reason = lines[-1] if lines else f"exit status {process.returncode}"
                way_out = "or give recorded words with --data DIR"
                raise UserError(f"rendering the synthetic speech failed: {reason}; {way_out}")
            clips = np.frombuffer(rendered, np.int16).reshape(-1, CLIP_SAMPLES)
            for first in range(0, len(clips), CHUNK_CLIPS):
                yield clips[first : first + CHUNK_CLIPS].astype(np.float32) / 32_768
