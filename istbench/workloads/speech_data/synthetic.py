"""A synthetic corpus of the Speech Commands words, spoken by eSpeak NG in many voices with white noise.

The sound of a word depends on the words that the library spoke before. So the clips form fixed blocks, and a new
process renders each block: one seed is one corpus, bit for bit, on any number of cores.

`python -m istbench.workloads.speech_data.synthetic BLOCK CLIPS_PER_WORD SEED` writes the clips of a block, int16
[n, 16000], to standard output. It imports only numpy, so it starts quickly.
"""

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from istbench.base.errors import UserError
from istbench.workloads.speech_data import espeak
from istbench.workloads.speech_data.words import CLIP_SAMPLES, WORDS

BLOCK_CLIPS = 2_000  # clips that one process renders

TEST_SHARE = 0.2
CLIPS_PER_WORD = 400

# Ranges, from which every clip draws uniformly. The noise is such that data parallel training on four nodes, at the
# defaults of `speech`, levels off near 80 % test accuracy, as on recorded words: results/speech-synthetic has 0.807
# after 20 epochs. More noise lowers it.
_SNR_DB = (12.0, 36.0)  # power of the spoken word relative to the noise
_SHIFT_S = (-0.1, 0.1)  # distance of the word's middle from the clip's middle, in seconds
_RATE_WPM = (150, 300)  # words per minute; from 150, every word fits into a second
_PITCH = _PITCH_RANGE = (20, 80)  # of eSpeak NG, 0 to 100
_PEAK = (0.1, 0.9)  # largest sample of the clip


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Words, splits and voices of all clips. Training and test clips have different voice variants.

    clips_per_word: clips of each of the 35 words; about a fifth are test clips.
    seed: another seed is another corpus.
    """

    clips_per_word: int
    seed: int = 0

    @property
    def size(self) -> int:
        """Number of clips."""
        return self.clips_per_word * len(WORDS)

    @property
    def blocks(self) -> int:
        """Number of blocks. All but the last have `BLOCK_CLIPS` clips."""
        return -(-self.size // BLOCK_CLIPS)

    @cached_property
    def labels(self) -> np.ndarray:
        """Word of every clip: int64 [size], in random order."""
        return np.random.default_rng([self.seed, 0]).permutation(self.size) % len(WORDS)

    @cached_property
    def is_test(self) -> np.ndarray:
        """Whether each clip is in the test split: bool [size], with the same number for every word."""
        each = max(1, round(self.clips_per_word * TEST_SHARE))
        order = np.argsort(self.labels, kind="stable").reshape(len(WORDS), -1)
        is_test = np.zeros(self.size, bool)
        is_test[order[:, :each]] = True
        return is_test

    @cached_property
    def variants(self) -> tuple[list[str], list[str]]:
        """Voice variants of the training clips and of the test clips."""
        names = espeak.voice_variants()
        order = np.random.default_rng([self.seed, 1]).permutation(len(names))
        cut = round(len(names) * TEST_SHARE)
        return [names[i] for i in order[cut:]], [names[i] for i in order[:cut]]

    def block_range(self, block: int) -> range:
        """The clips of `block`."""
        return range(block * BLOCK_CLIPS, min((block + 1) * BLOCK_CLIPS, self.size))


def render_block(corpus: Corpus, block: int, out: BinaryIO) -> None:
    """Write the clips of `block` to `out`, int16 [n, 16000].

    In a new process, the block depends only on (corpus, block).
    """
    with espeak.Synthesizer(seed=corpus.seed * 1_000 + block + 1) as synthesizer:
        for index in corpus.block_range(block):
            out.write(_render_clip(corpus, index, synthesizer).tobytes())
    out.flush()


def _render_clip(corpus: Corpus, index: int, synthesizer: espeak.Synthesizer) -> np.ndarray:
    draw = np.random.default_rng([corpus.seed, 2, index])
    names = corpus.variants[int(corpus.is_test[index])]
    spoken = synthesizer.say(
        WORDS[corpus.labels[index]],
        voice=f"{draw.choice(espeak.ACCENTS)}+{draw.choice(names)}",
        rate=int(draw.integers(*_RATE_WPM, endpoint=True)),
        pitch=int(draw.integers(*_PITCH, endpoint=True)),
        pitch_range=int(draw.integers(*_PITCH_RANGE, endpoint=True)),
    )
    word = _resample(_place(spoken, draw.uniform(*_SHIFT_S)))
    power = float(np.square(spoken, dtype=np.float32).mean()) if len(spoken) else 1.0
    noise_power = power / 10 ** (draw.uniform(*_SNR_DB) / 10)
    clip = word + np.sqrt(noise_power).astype(np.float32) * draw.standard_normal(CLIP_SAMPLES, np.float32)
    gain = draw.uniform(*_PEAK) * 32_767 / max(float(np.abs(clip).max()), 1.0)
    scaled: np.ndarray = clip * gain
    return scaled.astype(np.int16)


def _place(spoken: np.ndarray, shift_s: float) -> np.ndarray:
    """One second at eSpeak's rate with the sounding part of `spoken` in its middle, shifted by `shift_s`."""
    second = np.zeros(espeak.SAMPLE_RATE, np.float32)
    spoken = spoken[: len(second)]
    room = len(second) - len(spoken)
    start = min(max(room // 2 + round(shift_s * espeak.SAMPLE_RATE), 0), room)
    second[start : start + len(spoken)] = spoken
    return second


def _resample(second: np.ndarray) -> np.ndarray:
    """Resample one second exactly, by cutting its spectrum to the band of the clip."""
    spectrum = np.fft.rfft(second)[: CLIP_SAMPLES // 2 + 1]
    clip: np.ndarray = np.fft.irfft(spectrum, CLIP_SAMPLES) * (CLIP_SAMPLES / len(second))
    return clip.astype(np.float32)


def main() -> None:
    """Render one block to standard output. The arguments are its number, clips per word and the seed."""
    block, clips_per_word, seed = map(int, sys.argv[1:])
    try:
        render_block(Corpus(clips_per_word=clips_per_word, seed=seed), block, sys.stdout.buffer)
    except UserError as error:
        sys.exit(str(error))
    except (KeyboardInterrupt, BrokenPipeError):
        # The reader of the clips has ended or stops. Exit at once: a flush would fail again.
        os._exit(1)


if __name__ == "__main__":
    main()
