"""Speech features against a second, independent computation."""

import numpy as np
import torch

from istbench.workloads.speech_data.features import extractor

BANDS, WINDOW, HOP, RATE = 128, 2048, 512, 16_000


def slaney_mel(frequency):
    """Slaney's scale: linear below 1 kHz, 27 mels an interval of 6.4 above."""
    linear = 3 * frequency / 200
    with np.errstate(divide="ignore"):
        logarithmic = 15 + 27 * np.log(frequency / 1000) / np.log(6.4)
    return np.where(frequency < 1000, linear, logarithmic)


def slaney_hertz(mel):
    return np.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def filter_bank():
    """Triangles of area one over the transform's frequencies: [128, 1025]."""
    top = slaney_mel(np.array([RATE / 2.0]))[0]
    edges = slaney_hertz(np.linspace(0, top, BANDS + 2))
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    bank = np.zeros((BANDS, len(frequencies)))
    for band, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
        bank[band] = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return bank


def reference_features(clip):
    """The published features of one clip, float64 throughout: [4096]."""
    padded = np.pad(clip.astype(np.float64), WINDOW // 2)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    starts = range(0, len(padded) - WINDOW + 1, HOP)
    power = np.stack([np.abs(np.fft.rfft(padded[s : s + WINDOW] * hann)) ** 2 for s in starts], axis=1)
    mel = filter_bank() @ power
    decibels = 10 * np.log10(np.maximum(mel, 1e-10)) - 10 * np.log10(max(mel.max(), 1e-10))
    return np.maximum(decibels, -80).reshape(-1)


def test_features_agree_with_an_independent_computation():
    draw = np.random.default_rng(3)
    time = np.arange(RATE) / RATE
    chirp = 0.4 * np.sin(2 * np.pi * (200 + 2500 * time) * time)
    faded = chirp * (time < 0.6) + 1e-3 * draw.standard_normal(RATE)
    clips = np.stack([faded, 0.2 * draw.standard_normal(RATE), chirp]).astype(np.float32)
    features = extractor()(torch.from_numpy(clips)).numpy()
    assert features.shape == (3, 4096)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, [reference_features(clip) for clip in clips], atol=0.02)


def test_each_clip_is_measured_against_its_own_maximum():
    clips = torch.randn(2, RATE, generator=torch.Generator().manual_seed(0))
    quiet = clips * torch.tensor([[1.0], [0.01]])
    features = extractor()(quiet)
    assert features.amax(1).tolist() == [0, 0]
    torch.testing.assert_close(features, extractor()(clips), atol=1e-3, rtol=0)


def test_silence_is_finite():
    assert extractor()(torch.zeros(1, RATE)).eq(0).all()
