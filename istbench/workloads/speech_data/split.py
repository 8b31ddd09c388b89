"""Split recorded clips by the rule of Speech Commands, a hash of the file name."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from istbench.base.errors import UserError, printable

DIVIDER = "_nohash_"
"""Follows the speaker in the name of an official clip: SPEAKER_nohash_N.wav."""

BY_NAME_NOTE = (
    "split by whole file names: the usual split by speaker would leave a word without training clips or without "
    "test clips"
)
_TEST_PERCENT = 20
_MOST_CLIPS = 2**27 - 1  # per word, in TensorFlow's speech_commands example, the origin of the rule


def split_clips(
    paths: Sequence[Path], labels: np.ndarray, words: Sequence[str], root: Path
) -> tuple[np.ndarray, str]:
    """Whether each of `paths` (words `labels`, int64 [n]) is a test clip, bool [n]; and a note, possibly empty.

    All clips of a speaker are in the same split; about 20 % of the speakers are in the test split. If a word would
    have no training or no test clips, the whole file name decides instead, and the note says so.

    Raises:
        UserError: if a word then has no training clips, or there are no test clips.
    """
    by_speaker = _hashed(paths, lambda path: path.name.partition(DIVIDER)[0])
    if _counts(labels, by_speaker, words).all():
        return by_speaker, ""
    by_name = _hashed(paths, lambda path: path.name)
    to_test, to_train = _counts(labels, by_name, words)
    if not to_train.all():
        word = printable(words[int(to_train.argmin())])
        raise UserError(
            f"{printable(str(root))}: split by file name, {word} has no training clips; record more of it"
        )
    if not to_test.any():
        raise UserError(f"{printable(str(root))}: split by file name, there are no test clips; record more")
    return by_name, BY_NAME_NOTE


def _hashed(paths: Sequence[Path], part: Callable[[Path], str]) -> np.ndarray:
    return np.array([_percent(part(path)) < _TEST_PERCENT for path in paths], bool)


def _percent(name: str) -> float:
    """The hash of `name` as a number from 0 to 100."""
    number = int(hashlib.sha1(os.fsencode(name)).hexdigest(), 16)
    return number % (_MOST_CLIPS + 1) * (100 / _MOST_CLIPS)


def _counts(labels: np.ndarray, is_test: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Numbers of test and training clips of each word: int64 [2, words]."""
    return np.stack([np.bincount(labels[side], minlength=len(words)) for side in (is_test, ~is_test)])
