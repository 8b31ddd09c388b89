"""Recorded words in the layout of the Speech Commands archive: WORD/SPEAKER_nohash_N.wav, mono, 16 kHz."""

import hashlib
import io
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.errors import UserError, printable
from istbench.workloads.speech_data.words import CLIP_RATE, CLIP_SAMPLES, WORDS

_EXPECTED = "expected the folders of Speech Commands v0.02, one a word: backward/, bed/, ..., zero/"
_DIVIDER = "_nohash_"
_TEST_PERCENT = 20
_READERS = 4
_MOST_READ = 4 * 2**20  # a second in any format takes less

LOUDEST = 1_000.0
"""What a sample of a float format may be at most, where 1 is full scale: beyond it are no recordings."""


@dataclass(frozen=True)
class Recordings:
    """Recorded clips, sorted by word and name: path, word (int64 [n]) and split (bool [n]) of each."""

    root: Path
    paths: Sequence[Path]
    labels: np.ndarray
    is_test: np.ndarray

    def cache_key(self) -> dict[str, Any]:
        """Names, sizes and times of the files, which tell whether they are still the same.

        Raises:
            UserError: naming the first that is no file.
        """
        digest = hashlib.sha256()
        for path in self.paths:
            with _named_errors():
                found = path.stat()
            _require_file(path, found)
            digest.update(os.fsencode(f"{path.relative_to(self.root)} {found.st_size} {found.st_mtime_ns}\n"))
        return {"root": str(self.root), "files": digest.hexdigest()}

    def chunks(self, size: int) -> Iterator[np.ndarray]:
        """All clips in order, at most `size` at a time: float32 [b, 16000], as `read_clip` returns them.

        Raises:
            UserError: naming the first file that is no clip.
        """
        with ThreadPoolExecutor(_READERS) as readers:
            for first in range(0, len(self.paths), size):
                yield np.stack(list(readers.map(read_clip, self.paths[first : first + size])))


def find_recordings(data: Path) -> Recordings:
    """The clips in directory `data`, which holds the word folders itself or at most two levels down.

    All clips of a speaker are in the same split, by the hash of the speaker's name: about 20 % for testing.
    Folders that are not one of the 35 words are ignored, as are hidden files.

    Raises:
        UserError: when the directory is missing, empty or in another layout, naming what is wrong.
    """
    with _named_errors():
        return _find(data)


def _find(data: Path) -> Recordings:
    root = _word_root(data)
    missing = [word for word in WORDS if not (root / word).is_dir()]
    if missing:
        raise UserError(f"{root}: no folder for {_listed(missing)}; {_EXPECTED}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, word in enumerate(WORDS):
        clips = sorted(path for path in (root / word).iterdir() if not path.name.startswith("."))
        if not clips:
            raise UserError(f"{root / word}: empty; expected recordings such as 0a7c2a8d{_DIVIDER}0.wav")
        paths += clips
        labels += [label] * len(clips)
    is_test = np.array([_in_test_split(path) for path in paths])
    if is_test.all() or not is_test.any():
        raise UserError(f"{root}: too few speakers to have some for training and others for testing")
    return Recordings(root, paths, np.array(labels, np.int64), is_test)


def read_clip(path: Path) -> np.ndarray:
    """The first second of a recording, padded with zeros where it is shorter: float32 [16000].

    Samples of whole-number formats are within -1 to 1; those of float formats are taken as they are, up to
    `LOUDEST` either way. Features are relative to a clip's loudest, so a recording's scale makes no difference. Of
    a file at most `_MOST_READ` bytes are read.

    Raises:
        UserError: naming the file, when it is not a whole mono WAV file at 16 kHz of finite samples.
    """
    content, size = _read(path)
    _require_whole(path, content, size)
    samples = _decoded(path, content)
    if len(samples) == 0:
        raise _unfit(path, "no samples")
    if not np.isfinite(samples).all():
        raise _unfit(path, "a sample is not a number")
    loudest = samples[np.abs(samples).argmax()]
    if abs(loudest) > LOUDEST:
        raise _unfit(path, f"a sample of {loudest:g}, where 1 is full scale")
    clip = np.zeros(CLIP_SAMPLES, np.float32)
    clip[: len(samples)] = samples
    return clip


def _read(path: Path) -> tuple[bytes, int]:
    """The start of regular file `path`, and its size."""
    try:
        # A FIFO without a writer must not hang the open.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            found = os.fstat(descriptor)
            _require_file(path, found)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(min(_MOST_READ, found.st_size)), found.st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unfit(path, f"cannot be read as WAV ({error.strerror or error})") from None


def _decoded(path: Path, content: bytes) -> np.ndarray:
    """The first second of samples: float32 [at most 16000]."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as sound:
            if sound.samplerate != CLIP_RATE:
                raise _unfit(path, f"{sound.samplerate} samples a second, expected {CLIP_RATE}")
            if sound.channels != 1:
                raise _unfit(path, f"{sound.channels} channels, expected one")
            samples: np.ndarray = sound.read(CLIP_SAMPLES, dtype="float32")
            return samples
    except soundfile.SoundFileError as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise _unfit(path, f"cannot be read as WAV ({reason})") from None


def _require_whole(path: Path, content: bytes, size: int) -> None:
    """libsndfile reads what is left of a truncated file without a word, so compare its size to its header."""
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise _unfit(path, "not a WAV file")
    expected = struct.unpack_from("<I", content, 4)[0] + 8
    if size < expected:
        raise _unfit(path, f"truncated, {size} of {expected} bytes")
    at = 12
    while at + 8 <= len(content):
        name, length = struct.unpack_from("<4sI", content, at)
        at += 8
        if name == b"data" and length > size - at:
            promised = f"its header promises {length} bytes of samples"
            raise _unfit(path, f"truncated: {promised}, {size - at} are there")
        if name == b"data":
            return
        at += length + length % 2


def _require_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
        raise _unfit(path, f"cannot be read as WAV ({what}, not a file)")


def _unfit(path: Path, why: str) -> UserError:
    return UserError(f"{printable(str(path))}: {printable(why)}; replace the file or remove it")


def _in_test_split(path: Path) -> bool:
    speaker, divider, _ = path.name.partition(_DIVIDER)
    if not divider:
        raise UserError(f"{printable(str(path))}: no speaker in the name; expected SPEAKER{_DIVIDER}NUMBER.wav")
    return int(hashlib.sha1(os.fsencode(speaker)).hexdigest(), 16) % 100 < _TEST_PERCENT


def _word_root(data: Path) -> Path:
    if not data.is_dir():
        what = "not a directory" if data.exists() else "no such directory"
        raise UserError(f"{data}: {what}; {_EXPECTED}")
    level = [data]
    for _ in range(3):
        found = [folder for folder in level if any((folder / word).is_dir() for word in WORDS)]
        if len(found) > 1:
            raise UserError(f"{data}: word folders in {_listed([str(f) for f in found])}; name one of these")
        if found:
            return found[0].resolve()
        level = [inner for folder in level for inner in sorted(folder.iterdir()) if inner.is_dir()]
    what = "no word folders in it" if any(data.iterdir()) else "empty"
    raise UserError(f"{data}: {what}; {_EXPECTED}")


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = "the recordings" if error.filename is None else os.fsdecode(error.filename)
        raise UserError(f"{printable(name)}: {error.strerror or error}; make it readable or remove it") from None


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
