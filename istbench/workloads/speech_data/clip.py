"""One recorded clip: what makes a file a clip, and its first second of samples."""

import io
import os
import stat
import struct
from pathlib import Path

import numpy as np

from istbench.errors import UserError, printable
from istbench.workloads.speech_data.words import CLIP_RATE, CLIP_SAMPLES

_MOST_READ = 4 * 2**20  # a second in any format takes less

LOUDEST = 1_000.0
"""What a sample of a float format may be at most, where 1 is full scale: beyond it are no recordings."""


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
            require_file(path, found)
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


def require_file(path: Path, found: os.stat_result) -> None:
    """Refuse a `path` that is no regular file, by what `stat` found.

    Raises:
        UserError: naming it.
    """
    if not stat.S_ISREG(found.st_mode):
        what = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
        raise _unfit(path, f"cannot be read as WAV ({what}, not a file)")


def _unfit(path: Path, why: str) -> UserError:
    return UserError(f"{printable(str(path))}: {printable(why)}; replace the file or remove it")
