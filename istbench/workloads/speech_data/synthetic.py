"""A synthetic corpus of the Speech Commands words, spoken by eSpeak NG in many voices under white noise.

How a word sounds depends on what the library said before. So the clips are cut into fixed blocks, and every
block is rendered by a process of its own: one seed is one corpus, bit for bit, on any number of cores.

Run as `python -m istbench.workloads.speech_data.synthetic BLOCK SETTINGS` such a process writes the block's
clips, int16 [n, 16000], to standard output. It needs numpy only, so it starts quickly.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from istbench.errors import UserError
from istbench.workloads.speech_data import espeak
from istbench.workloads.speech_data.words import CLIP_SAMPLES, WORDS

BLOCK_CLIPS = 2_000  # clips that one process renders
CHUNK_CLIPS = 200  # clips that it hands over at a time

TEST_SHARE = 0.2

# Tuned once with scripts/bench/tune_synthetic_speech.py, so that data parallel training (plain SGD, learning
# rate 0.01, four minibatches of 128) levels off near 80 % test accuracy, as on recorded words. By noise,
# after 25 epochs at h=1024 with BatchNorm's statistics estimated anew: 5-30 dB .70, 10-35 dB .77,
# 12-36 dB .80, 15-40 dB .83.
SNR_DB = (12.0, 36.0)
CLIPS_PER_WORD = 400
SHIFT_S = 0.1


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """What determines the corpus. Pairs are ranges that are drawn from uniformly, for every clip.

    clips_per_word: clips of each of the 35 words, about a fifth of them test clips.
    seed: another seed is another corpus.
    snr_db: power of the spoken word over that of the noise.
    shift_s: the word's middle is off the clip's by at most this, in seconds.
    rate_wpm: words a minute; from 150 on, every word fits into a second.
    pitch, pitch_range: eSpeak NG's, 0 to 100.
    peak: largest sample of the clip.
    """

    clips_per_word: int = CLIPS_PER_WORD
    seed: int = 0
    snr_db: tuple[float, float] = SNR_DB
    shift_s: float = SHIFT_S
    rate_wpm: tuple[int, int] = (150, 300)
    pitch: tuple[int, int] = (20, 80)
    pitch_range: tuple[int, int] = (20, 80)
    peak: tuple[float, float] = (0.1, 0.9)

    def to_json(self) -> str:
        """The settings as JSON, for the command line of a rendering process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Corpus:
    """Which clip is which, before any is rendered. Voice variants of training and test clips are disjoint."""

    settings: CorpusSettings

    @property
    def size(self) -> int:
        """Number of clips."""
        return self.settings.clips_per_word * len(WORDS)

    @property
    def blocks(self) -> int:
        """Number of blocks, of `BLOCK_CLIPS` clips but for the last."""
        return -(-self.size // BLOCK_CLIPS)

    @cached_property
    def labels(self) -> np.ndarray:
        """Word of every clip: int64 [size], in an order that mixes them."""
        return np.random.default_rng([self.settings.seed, 0]).permutation(self.size) % len(WORDS)

    @cached_property
    def is_test(self) -> np.ndarray:
        """Whether each clip is of the test split: bool [size], the same number for every word."""
        each = max(1, round(self.settings.clips_per_word * TEST_SHARE))
        order = np.argsort(self.labels, kind="stable").reshape(len(WORDS), -1)
        is_test = np.zeros(self.size, bool)
        is_test[order[:, :each]] = True
        return is_test

    @cached_property
    def variants(self) -> tuple[list[str], list[str]]:
        """Voice variants of the training and of the test clips."""
        names = espeak.voice_variants()
        order = np.random.default_rng([self.settings.seed, 1]).permutation(len(names))
        cut = round(len(names) * TEST_SHARE)
        return [names[i] for i in order[cut:]], [names[i] for i in order[:cut]]

    def block_range(self, block: int) -> range:
        """The clips of `block`."""
        return range(block * BLOCK_CLIPS, min((block + 1) * BLOCK_CLIPS, self.size))


def render_block(corpus: Corpus, block: int, out: BinaryIO) -> None:
    """Write the clips of `block` to `out`, int16 [n, 16000], `CHUNK_CLIPS` at a time.

    The block depends on (settings, block) alone in a process that has rendered nothing before.
    """
    chunk: list[np.ndarray] = []
    with espeak.Synthesizer(seed=corpus.settings.seed * 1_000 + block + 1) as synthesizer:
        for index in corpus.block_range(block):
            chunk.append(_render_clip(corpus, index, synthesizer))
            if len(chunk) == CHUNK_CLIPS:
                out.write(np.stack(chunk).tobytes())
                chunk.clear()
    out.write(b"".join(clip.tobytes() for clip in chunk))
    out.flush()


def _render_clip(corpus: Corpus, index: int, synthesizer: espeak.Synthesizer) -> np.ndarray:
    settings = corpus.settings
    draw = np.random.default_rng([settings.seed, 2, index])
    names = corpus.variants[int(corpus.is_test[index])]
    spoken = synthesizer.say(
        WORDS[corpus.labels[index]],
        voice=f"{draw.choice(espeak.ACCENTS)}+{draw.choice(names)}",
        rate=int(draw.integers(*settings.rate_wpm, endpoint=True)),
        pitch=int(draw.integers(*settings.pitch, endpoint=True)),
        pitch_range=int(draw.integers(*settings.pitch_range, endpoint=True)),
    )
    word = _resample(_place(spoken, draw.uniform(-settings.shift_s, settings.shift_s)))
    noise_power = _power(spoken) / 10 ** (draw.uniform(*settings.snr_db) / 10)
    clip = word + np.sqrt(noise_power).astype(np.float32) * draw.standard_normal(CLIP_SAMPLES, np.float32)
    gain = draw.uniform(*settings.peak) * 32_767 / max(float(np.abs(clip).max()), 1.0)
    scaled: np.ndarray = clip * gain
    return scaled.astype(np.int16)


def _power(spoken: np.ndarray) -> float:
    return float(np.square(spoken, dtype=np.float32).mean()) if len(spoken) else 1.0


def _place(spoken: np.ndarray, shift_s: float) -> np.ndarray:
    """One second at eSpeak's rate with the sounding part of `spoken` in its middle, shifted by `shift_s`."""
    second = np.zeros(espeak.SAMPLE_RATE, np.float32)
    spoken = spoken[: len(second)]
    room = len(second) - len(spoken)
    start = min(max(room // 2 + round(shift_s * espeak.SAMPLE_RATE), 0), room)
    second[start : start + len(spoken)] = spoken
    return second


def _resample(second: np.ndarray) -> np.ndarray:
    """One second of samples at another rate, band-limited exactly: its spectrum cut to the clip's."""
    spectrum = np.fft.rfft(second)[: CLIP_SAMPLES // 2 + 1]
    clip: np.ndarray = np.fft.irfft(spectrum, CLIP_SAMPLES) * (CLIP_SAMPLES / len(second))
    return clip.astype(np.float32)


def main() -> None:
    """Render one block to standard output: arguments are the block's number and the settings as JSON."""
    settings = CorpusSettings(**json.loads(sys.argv[2]))
    try:
        render_block(Corpus(settings), int(sys.argv[1]), sys.stdout.buffer)
    except UserError as error:
        sys.exit(str(error))
    except (KeyboardInterrupt, BrokenPipeError):
        # The process that wanted the clips is gone or stopping. Leave at once: flushing would fail again.
        os._exit(1)


if __name__ == "__main__":
    main()
