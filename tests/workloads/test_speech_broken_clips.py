"""Clips that are no clips: whatever lies among the recordings is read within bounds, or named in one line."""

import errno
import io
import os
import socket
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.workloads.speech import Speech
from istbench.workloads.speech_data import clip
from istbench.workloads.speech_data.clip import LOUDEST, read_clip
from istbench.workloads.speech_data.recordings import find_recordings

TONE = np.sin(np.arange(900) / 7) / 2
FORMATS = [
    ("WAV", "PCM_16"), ("WAV", "PCM_U8"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"),
    ("WAV", "ULAW"), ("WAV", "MS_ADPCM"), ("WAVEX", "PCM_16"), ("WAVEX", "PCM_24"), ("WAVEX", "FLOAT"),
]  # fmt: skip


def wav(samples=TONE, *, container="WAV", subtype="PCM_16"):
    """The bytes of a WAV file at 16 kHz."""
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format=container, subtype=subtype)
    return file.getvalue()


VALID = [wav(container=container, subtype=subtype) for container, subtype in FORMATS]


def by_hand(
    *, code = 1, channels = 1, rate = 16_000, align = 2, bits = 16,
    data = b"\1\2" * 50, data_size = None, riff_size = None,
):  # fmt: skip
    """A WAV file whose header says what it is told to."""
    layout = struct.pack("<HHIIHH", code, channels, rate, rate * align % 2**32, align, bits)
    chunks = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout
    chunks += b"data" + struct.pack("<I", len(data) if data_size is None else data_size) + data
    return b"RIFF" + struct.pack("<I", len(chunks) if riff_size is None else riff_size) + chunks


def check(content):
    """Read `content` as a clip: what comes of it is a clip, or one line that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.wav"
        path.write_bytes(content)
        try:
            clip = read_clip(path).samples
        except UserError as error:
            said = str(error)
        else:
            assert (clip.dtype, clip.shape) == (np.float32, (16_000,))
            assert np.abs(clip).max() <= LOUDEST  # false for NaN
            return
        assert said.startswith(f"{path}: ")
        assert said.isprintable()


HARD = settings(
    derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow], database=None
)
SIZES = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 255, 2**15, 2**16 - 1])
LONG_SIZES = st.sampled_from([0, 1, 8_000, 16_000, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1])


@pytest.mark.parametrize(("container", "subtype"), FORMATS)
def test_formats_that_wav_files_come_in(tmp_path, container, subtype):
    path = tmp_path / "clip.wav"
    path.write_bytes(wav(container=container, subtype=subtype))
    samples = read_clip(path).samples
    assert np.abs(samples[:900] - TONE).max() < (0.05 if subtype in ("PCM_U8", "ULAW", "MS_ADPCM") else 1e-4)
    assert subtype == "MS_ADPCM" or not samples[900:].any()  # which fills up its last block


@HARD
@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=8)), max_size=4),
    st.integers(0, 4_000),
)
def test_bytes_changed_in_header_and_data(content, changes, length):
    broken = bytearray(content)
    for at, values in changes:
        broken[at : at + len(values)] = values
    check(bytes(broken[:length]))


@HARD
@given(
    code=SIZES, channels=SIZES, rate=LONG_SIZES, align=SIZES, bits=SIZES, data=st.binary(max_size=64),
    data_size=st.none() | LONG_SIZES, riff_size=st.none() | LONG_SIZES,
)  # fmt: skip
def test_headers_that_say_anything(**fields):
    check(by_hand(**fields))


@HARD
@given(st.binary(max_size=200), st.sampled_from([b"", b"RIFF\xff\xff\0\0WAVE", VALID[0][:36]]))
def test_rubbish(rubbish, start):
    check(start + rubbish)


@HARD
@given(st.binary(min_size=8, max_size=64), st.sampled_from([(3, 4), (3, 8), (1, 3), (1, 4), (1, 1), (7, 1)]))
def test_samples_of_any_bits(data, encoding):
    code, width = encoding
    check(by_hand(code=code, align=width, bits=8 * width, data=data[: len(data) // width * width]))


LYING = {
    "no channels": (by_hand(channels=0, align=0), "cannot be read as WAV"),
    "many channels": (by_hand(channels=1000, align=2000, data=bytes(4000)), "1000 channels, expected at most 64"),
    "no rate": (by_hand(rate=0), "cannot be read as WAV"),
    "2^29 frames": (by_hand(data_size=2**30), "truncated: its header promises 1073741824 bytes of samples"),
    "no samples": (by_hand(data=b""), "no samples"),
    "no samples in a pipe": (by_hand(data=b"", data_size=2**32 - 1, riff_size=2**32 - 1), "no samples"),
    "no samples but a title": (by_hand(data=b"LIST\x04\0\0\0INFO", data_size=0), "no samples"),
    "unknown code": (by_hand(code=0x1234), "cannot be read as WAV"),
    "NaN": (wav(np.array([0.1, np.nan]), subtype="FLOAT"), "a sample is not a number"),
    "infinity": (wav(np.array([0.1, -np.inf]), subtype="FLOAT"), "a sample is not a number"),
    "beyond float32": (wav(np.array([0.1, 1e300]), subtype="DOUBLE"), "a sample is not a number"),
    "loud": (wav(np.array([0.1, -2e3]), subtype="FLOAT"), "a sample is -2000"),
}


@pytest.mark.parametrize("lie", LYING)
def test_what_is_wrong_with_a_file_is_said(tmp_path, lie):
    content, says = LYING[lie]
    path = tmp_path / "clip.wav"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_clip(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_of_a_file_of_gigabytes_the_first_second_is_read(tmp_path):
    size = 4 * 2**30 - 2**20
    path = tmp_path / "long.wav"
    path.write_bytes(by_hand(data=wav()[44:], data_size=size - 44, riff_size=size - 8))
    os.truncate(path, size)
    assert np.abs(read_clip(path).samples[:900] - TONE).max() < 1e-4


SIZES_IN_HEADERS = {  # of the file and of its samples; None is the right one
    "ffmpeg": (2**32 - 1, 2**32 - 1),
    "sox": (0x7FFFF024, 0x7FFFF000),
    "arecord": (2**31 + 36, 2**31),
    "Python": (36, 0),
    "zeros": (0, 0),
    "a file that counts too much": (2**20, None),
}


@pytest.mark.parametrize("writer", SIZES_IN_HEADERS)
@pytest.mark.parametrize(("container", "subtype"), [("WAV", "PCM_16"), ("WAVEX", "FLOAT")])
def test_sizes_that_a_writer_could_not_know(tmp_path, writer, container, subtype):
    whole, part = SIZES_IN_HEADERS[writer]
    content = bytearray(wav(container=container, subtype=subtype))
    content[4:8] = struct.pack("<I", whole)
    if part is not None:
        at = content.index(b"data") + 4
        content[at : at + 4] = struct.pack("<I", part)
    (tmp_path / "clip.wav").write_bytes(content)
    samples = read_clip(tmp_path / "clip.wav").samples
    assert np.abs(samples[:900] - TONE).max() < 1e-4
    assert not samples[900:].any()


def _socket(path):
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(path))


STRANGE = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_file_is_named_at_once(recordings, monkeypatch, tmp_path, no_progress, kind):
    data = recordings()
    monkeypatch.chdir(data / "house")  # the name of a socket is short
    file = data / "house" / "speaker0_nohash_1.wav"
    STRANGE[kind](Path(file.name))
    with pytest.raises(UserError) as caught:
        Speech().prepare(data, tmp_path / "cache", no_progress)
    assert str(caught.value).startswith(f"{file}: ")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(UserError, match=f"^{file}: "):
        read_clip(file)


def test_an_unreadable_clip_is_named(tmp_path, monkeypatch):
    def refuse(path, flags):  # root reads what no one may read, so chmod would not do
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    path = tmp_path / "clip.wav"
    path.write_bytes(wav())
    monkeypatch.setattr(clip.os, "open", refuse)
    with pytest.raises(UserError, match=f"^{path}: cannot be read as WAV \\(Permission denied\\)"):
        read_clip(path)


def test_names_that_are_not_utf_8_are_speakers_too(recordings, tmp_path, no_progress):
    data = recordings()
    strange = data / "go" / os.fsdecode(b"\xff\xfe_nohash_0.wav")
    strange.write_bytes(wav())
    assert strange in find_recordings(data).paths
    source = Speech().prepare(data, tmp_path / "cache", no_progress)
    assert source.train + source.test == 71
    strange.write_bytes(b"broken")
    with pytest.raises(UserError) as caught:
        Speech().prepare(data, tmp_path / "cache", no_progress)
    assert str(caught.value).encode().isascii()
    assert r"\udcff\udcfe_nohash_0.wav: not a WAV file" in str(caught.value)


def test_a_name_of_two_lines_is_said_in_one(recordings, tmp_path, no_progress):
    data = recordings()
    (data / "go" / "two\nlines.wav").write_bytes(b"broken")
    with pytest.raises(UserError) as caught:
        Speech().prepare(data, tmp_path / "cache", no_progress)
    assert "two?lines.wav: not a WAV file" in str(caught.value)
