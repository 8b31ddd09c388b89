"""Read the first second of a recorded clip as samples at 16 kHz, and check its file."""

import io
import math
import os
import struct
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch

from istbench.base.errors import UserError, printable
from istbench.workloads.prepared import require_regular
from istbench.workloads.speech_data.words import CLIP_RATE, CLIP_SAMPLES

LOUDEST = 1_000.0
"""Maximum of a sample in a float format, where 1 is full scale. Recordings do not exceed it."""
LOWEST_RATE, HIGHEST_RATE = 1_000, 1_000_000
"""Bounds of a recording's sampling rate, in Hz."""
MOST_CHANNELS = 64

_HEADERS = 4 * 2**20  # the samples of a sensible WAV file begin within this many bytes
_UNKNOWN = (
    0x7FFFF000  # from here on, a size in a header means a pipe: sox writes this, arecord 2^31, ffmpeg 2^32 - 1
)
_STREAMED = 2**26  # bytes that are read of a file from a pipe
_BLOCK = 2**16  # frames read at a time, for any number of channels
_LARGEST_FILTER = 2**20  # taps over all phases


class Clip(NamedTuple):
    """The first second of a recording, padded with zeros if it is shorter.

    samples: float32 [16000]. converted: whether the recording was not 16 kHz mono.
    """

    samples: np.ndarray
    converted: bool


def read_clip(path: Path) -> Clip:
    """Read the first second of a WAV, FLAC or Ogg file of any sensible sampling rate and number of channels.

    The mean of all channels counts. Samples of integer formats are from -1 to 1; float formats keep their scale, up
    to `LOUDEST`. Features are relative to the loudest part of a clip, so the scale makes no difference. Only the
    headers and the first second are read.

    Raises:
        UserError: naming a file that is not a complete recording of finite samples.
    """
    try:
        # A FIFO without a writer must not hang the open.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            found = os.fstat(descriptor)
            require_regular(path, found, "WAV")
            start = _samples_of_a_pipe(path, os.pread(descriptor, min(_HEADERS, found.st_size), 0), found.st_size)
            file = descriptor if start is None else _sized(os.pread(descriptor, _STREAMED, 0), start)
            samples, rate, channels = _first_second(path, file)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unfit(path, f"cannot be read as WAV ({error.strerror or error})") from None
    _require_sound(path, samples)
    if rate != CLIP_RATE:
        samples = _resampled(samples, rate)
    padded = np.zeros(CLIP_SAMPLES, np.float32)
    padded[: len(samples)] = samples[:CLIP_SAMPLES]
    return Clip(padded, rate != CLIP_RATE or channels != 1)


def _first_second(path: Path, file: int | BinaryIO) -> tuple[np.ndarray, int, int]:
    """The first second as mono (float32 [up to rate]), its sampling rate and its number of channels."""
    import soundfile

    try:
        with soundfile.SoundFile(file, closefd=False) as sound:
            rate, channels = sound.samplerate, sound.channels
            if not LOWEST_RATE <= rate <= HIGHEST_RATE:
                raise _unfit(path, f"{rate} samples a second, expected {LOWEST_RATE:,} to {HIGHEST_RATE:,}")
            if channels > MOST_CHANNELS:
                raise _unfit(path, f"{channels} channels, expected at most {MOST_CHANNELS}")
            promised, blocks, left = min(sound.frames, rate), [np.zeros(0, np.float32)], rate
            while left and len(block := sound.read(min(left, _BLOCK), dtype="float32", always_2d=True)):
                with np.errstate(all="ignore"):  # infinite values remain in the mean over the channels
                    blocks.append(block.mean(1))
                left -= len(block)
    except soundfile.SoundFileError as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise _unfit(path, f"cannot be read as WAV, FLAC or Ogg ({reason})") from None
    if rate - left < promised:
        raise _unfit(path, f"truncated: {rate - left} of {promised} samples per channel")
    return np.concatenate(blocks), rate, channels


def _resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    """`samples` at 16 kHz, clamped to `LOUDEST` because the filter overshoots."""
    from torchaudio.functional import resample

    # The filter has a phase for each step of the ratio: for 44,101 Hz it would need gigabytes. With a close ratio
    # of small numbers, the end of the second is off by a few samples at most.
    ratio = Fraction(rate, CLIP_RATE).limit_denominator(math.isqrt(_LARGEST_FILTER * CLIP_RATE // rate))
    with torch.no_grad():
        found = resample(torch.from_numpy(samples), ratio.numerator, ratio.denominator)
    return found.clamp_(-LOUDEST, LOUDEST).numpy()


def _require_sound(path: Path, samples: np.ndarray) -> None:
    if len(samples) == 0:
        raise _unfit(path, "no samples")
    if not np.isfinite(samples).all():
        raise _unfit(path, "a sample is not a number")
    loudest = samples[np.abs(samples).argmax()]
    if abs(loudest) > LOUDEST:
        raise _unfit(path, f"a sample is {loudest:g}, where 1 is full scale")


def _samples_of_a_pipe(path: Path, content: bytes, size: int) -> int | None:
    """Where the samples of a WAV file start, if its writer could not know their size; None for any other file.

    Raises:
        UserError: for a truncated file, which libsndfile reads without an error.
    """
    if content[:4] in (b"fLaC", b"OggS"):
        return None
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise _unfit(path, "not a WAV file, nor FLAC or Ogg")
    end = struct.unpack_from("<I", content, 4)[0] + 8
    at = 12
    while at + 8 <= len(content):
        name, length = struct.unpack_from("<4sI", content, at)
        at += 8
        if name == b"data":
            if _UNKNOWN > length > size - at:
                promised = f"its header promises {length} bytes of samples"
                raise _unfit(path, f"truncated: {promised}, but it has {size - at}")
            # An empty recording may have other chunks behind it, up to the end in its header.
            return at if length > size - at or (not length and not at < end <= size) else None
        at += length + length % 2
    return None


def _sized(content: bytes, start: int) -> BinaryIO:
    """A WAV file from a pipe with the size of its samples, which go from `start` to its end."""
    return io.BytesIO(content[: start - 4] + struct.pack("<I", max(0, len(content) - start)) + content[start:])


def _unfit(path: Path, why: str) -> UserError:
    return UserError(f"{printable(str(path))}: {printable(why)}; replace the file or remove it")
