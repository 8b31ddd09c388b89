"""Which recorded clips are for testing: the rule of Speech Commands, by a hash of the file's name."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from istbench.errors import UserError, printable

DIVIDER = "_nohash_"
"""Follows the speaker in the name of an official clip: SPEAKER_nohash_N.wav."""

BY_NAME_NOTE = (
    "split by whole file names: by speaker, as the data set's own rule has it, a word would be without clips to "
    "train on or to test on"
)
_TEST_PERCENT = 20
_MOST_CLIPS = 2**27 - 1  # of a word, in TensorFlow's speech_commands example, where the rule is from


def split_clips(
    paths: Sequence[Path], labels: np.ndarray, words: Sequence[str], root: Path
) -> tuple[np.ndarray, str]:
    """Whether each of `paths` (words `labels`, int64 [n]) is for testing, bool [n]; and a note, or nothing.

    All clips of a speaker are on the same side, about 20 % of the speakers on that for testing. Where that leaves
    any word without clips on either side, all clips are split by their whole file names instead, as the note says.

    Raises:
        UserError: where that leaves a word none to train on, or nothing to test on.
    """
    by_speaker = _hashed(paths, lambda path: path.name.partition(DIVIDER)[0])
    if _counts(labels, by_speaker, words).all():
        return by_speaker, ""
    by_name = _hashed(paths, lambda path: path.name)
    to_test, to_train = _counts(labels, by_name, words)
    if not to_train.all():
        word = printable(words[int(to_train.argmin())])
        raise UserError(
            f"{printable(str(root))}: split by file name, {word} has no clips to train on; record more of it"
        )
    if not to_test.any():
        raise UserError(f"{printable(str(root))}: split by file name, there are no clips to test on; record more")
    return by_name, BY_NAME_NOTE


def _hashed(paths: Sequence[Path], part: Callable[[Path], str]) -> np.ndarray:
    return np.array([_percent(part(path)) < _TEST_PERCENT for path in paths], bool)


def _percent(name: str) -> float:
    """Where the hash of `name` falls, from 0 to 100."""
    number = int(hashlib.sha1(os.fsencode(name)).hexdigest(), 16)
    return number % (_MOST_CLIPS + 1) * (100 / _MOST_CLIPS)


def _counts(labels: np.ndarray, is_test: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Clips to test on and to train on of each word: int64 [2, words]."""
    return np.stack([np.bincount(labels[side], minlength=len(words)) for side in (is_test, ~is_test)])
