"""Recordings of other sampling rates, channels and formats, as 16 kHz mono."""

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.workloads.speech import Speech
from istbench.workloads.speech_data.clip import LOUDEST, read_clip


def tone(rate, seconds=1.0, hertz=200):
    """A tone at `rate` samples a second, float64 [frames]."""
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate) / 2


@pytest.mark.parametrize("rate", [1_000, 8_000, 11_025, 22_050, 44_100, 44_101, 48_000, 192_000, 999_983])
def test_any_rate_sounds_the_same(tmp_path, rate):
    path = tmp_path / "clip.wav"
    soundfile.write(path, tone(rate, 1.5), rate, subtype="FLOAT")
    clip = read_clip(path)
    assert clip.converted
    # Beside the ends, where the filter runs out of samples.
    assert np.abs(clip.samples - tone(16_000))[200:-200].max() < 0.02


def test_a_short_recording_at_another_rate_is_padded(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, tone(8_000, 0.25), 8_000)
    clip = read_clip(path)
    assert np.abs(clip.samples - tone(16_000))[200:3_800].max() < 0.01
    assert not clip.samples[4_000:].any()


def test_channels_are_mixed_down_by_their_mean(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, np.stack([tone(16_000), np.zeros(16_000), -0.5 * tone(16_000)], 1), 16_000)
    clip = read_clip(path)
    assert clip.converted
    assert np.abs(clip.samples - tone(16_000) / 6).max() < 1e-4


@pytest.mark.parametrize(("suffix", "subtype", "error"), [("flac", "PCM_16", 1e-4), ("ogg", "VORBIS", 0.05)])
def test_formats_beside_wav(tmp_path, suffix, subtype, error):
    path = tmp_path / f"clip.{suffix}"
    soundfile.write(path, tone(16_000), 16_000, subtype=subtype)
    clip = read_clip(path)
    assert not clip.converted
    assert np.abs(clip.samples - tone(16_000)).max() < error
    content = path.read_bytes()
    for size in (4, 60, len(content) // 2, len(content) - 10):
        path.write_bytes(content[:size])
        with pytest.raises(UserError) as caught:
            read_clip(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert str(caught.value).isprintable()


@settings(derandomize=True, deadline=None, max_examples=40, database=None)
@given(
    rate=st.integers(1_000, 1_000_000), channels=st.integers(1, 64), frames=st.integers(1, 300),
    loud=st.sampled_from([1e-30, 1.0, LOUDEST]),
)  # fmt: skip
def test_any_rate_and_channels_are_a_clip(tmp_path_factory, rate, channels, frames, loud):
    path = tmp_path_factory.getbasetemp() / "clip.wav"
    square = np.where(np.arange(frames) % 50 < 25, loud, -loud)
    soundfile.write(path, np.tile(square[:, None], channels), rate, subtype="FLOAT")
    clip = read_clip(path)
    assert (clip.samples.dtype, clip.samples.shape) == (np.float32, (16_000,))
    assert np.abs(clip.samples).max() <= LOUDEST
    assert clip.converted == ((rate, channels) != (16_000, 1))


def test_a_broken_channel_is_found(tmp_path):
    path = tmp_path / "clip.wav"
    for bad in (np.nan, np.inf):
        samples = np.zeros((8_000, 2))
        samples[7_999, 1] = bad
        soundfile.write(path, samples, 8_000, subtype="FLOAT")
        with pytest.raises(UserError, match="a sample is not a number"):
            read_clip(path)


def test_the_note_says_once_how_many_were_converted(recordings, tmp_path, no_progress):
    data = recordings()
    for speaker, rate in (("speaker0", 8_000), ("speaker7", 44_100)):
        soundfile.write(data / "go" / f"{speaker}_nohash_0.wav", np.stack([tone(rate)] * 2, 1), rate)
    speech = Speech()
    for _ in range(2):  # made, then found in the cache
        source = speech.prepare(data, tmp_path / "cache", no_progress)
        assert source.note == "2 of 70 clips were resampled or mixed down to 16 kHz mono"
    speech.open(source)
    features, labels = speech.train_batch(torch.arange(35), torch.Generator())
    assert labels.tolist() == list(range(35))
    assert torch.isfinite(features).all()
