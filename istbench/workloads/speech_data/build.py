"""Prepare a directory of features, from recorded or synthetic clips."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.workloads.base import DataSource, Progress
from istbench.workloads.prepared import source_of
from istbench.workloads.speech_data import espeak, synthetic
from istbench.workloads.speech_data.cache import SpeechSummary, feature_writer, prepared, require_room
from istbench.workloads.speech_data.features import extractor
from istbench.workloads.speech_data.recordings import find_recordings
from istbench.workloads.speech_data.synthetic import CHUNK_CLIPS, Corpus, CorpusSettings
from istbench.workloads.speech_data.words import CLIP_SAMPLES, WORDS

SYNTHETIC_NOTE = (
    "synthetic speech data: words spoken by eSpeak NG, not recordings "
    "(for these: --data DIR, or `istbench data speech --source download`)"
)
_RECORDED_CHUNK = 256
_CLIP_BYTES = CLIP_SAMPLES * 2


def prepare_recorded(data: Path, cache: Path, progress: Progress) -> DataSource:
    """Prepare features of the recorded words in directory `data`, a folder each, under `cache`.

    Raises:
        UserError: for a directory in the wrong layout, a broken recording, or a cache that is not writable.
    """
    recordings = find_recordings(data)

    def fill(directory: Path) -> int:
        require_room(directory, len(recordings.paths), "make room there")
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


def prepare_synthetic(settings: CorpusSettings, cache: Path, progress: Progress) -> DataSource:
    """Prepare features of the synthetic corpus of `settings` under `cache`.

    Raises:
        UserError: if it is not in `cache` and eSpeak NG is missing, or the cache is not writable.
    """

    def fill(directory: Path) -> int:
        espeak.require()
        corpus = Corpus(settings)
        require_room(directory, corpus.size, "use fewer clips_per_word")
        clips = ((first, pcm.astype(np.float32) / 32_768) for first, pcm in _render(corpus))
        _write_features(clips, directory, corpus.labels, corpus.is_test, progress)
        return 0

    path, summary = prepared(cache, "synthetic", asdict(settings), WORDS, fill, progress)
    return source_of(path, summary, kind="synthetic", name="SYNTHETIC speech", unit="clips", note=SYNTHETIC_NOTE)


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
        command = [sys.executable, "-P", "-m", synthetic.__name__, str(block), corpus.settings.to_json()]
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
