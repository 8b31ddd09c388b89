"""Recorded words, a folder each as in Speech Commands (WORD/SPEAKER_nohash_N.wav), and its download."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.errors import UserError, printable
from istbench.base.files import kind_at
from istbench.workloads.prepared import Download, files_digest, listed, named_errors, utf8_name, visible
from istbench.workloads.speech_data.words import CLIPS, FIRST_CLIPS, FIRST_WORDS, MOST_WORDS, WORDS

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
    untested = [word for word, tests in zip(words, to_test, strict=True) if not tests]
    notes = [BY_NAME_NOTE] if any(DIVIDER in path.name for path in paths) else []
    notes += [f"no test clips of {printable(', '.join(untested))}"] if untested else []
    return by_name, "; ".join(notes)


def _hashed(paths: Sequence[Path], part: Callable[[Path], str]) -> np.ndarray:
    """Whether the hash of a `part` of each name, from 0 to 100, is below the percent of the test split."""
    hashes = [int(hashlib.sha1(os.fsencode(part(path))).hexdigest(), 16) for path in paths]
    return np.array([own % (_MOST_CLIPS + 1) * (100 / _MOST_CLIPS) < _TEST_PERCENT for own in hashes], bool)


def _counts(labels: np.ndarray, is_test: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Numbers of test and training clips of each word: int64 [2, words]."""
    return np.stack([np.bincount(labels[side], minlength=len(words)) for side in (is_test, ~is_test)])


_WHAT = "the recordings"
_EXPECTED = "expected two or more folders of clips, one per word, such as backward/, bed/, ..., zero/"
_SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus")
_OTHER_SOUNDS = (".aac", ".aif", ".aiff", ".au", ".caf", ".m4a", ".mp3", ".mp4", ".webm", ".wma")
_DEPTH = 3
_LONGEST_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """Recorded clips, sorted by word and name.

    Attributes:
        root: the parent of the word folders.
        words: the words in the order of their labels.
        paths, labels, is_test: path, word (int64 [n]) and split (bool [n]) of each clip.
        note: remarks on the split and on other files; may be empty.
    """

    root: Path
    words: tuple[str, ...]
    paths: Sequence[Path]
    labels: np.ndarray
    is_test: np.ndarray
    note: str

    @property
    def data_set(self) -> tuple[str, str, int | None]:
        """The kind of data, its name for readers, and the total number of its clips if known.

        Data with the words of Speech Commands, and speakers in all file names, counts as Speech Commands.
        """
        official = all(DIVIDER in path.name for path in self.paths)
        if official and self.words == WORDS:
            return "speech_commands", "speech_commands", CLIPS
        if official and self.words == FIRST_WORDS:
            return "speech_commands_v0.01", "speech_commands v0.01", FIRST_CLIPS
        return "words", f"words in {printable(self.root.name)[:_LONGEST_SHOWN]}", None

    def cache_key(self) -> dict[str, Any]:
        """A JSON-ready key from names, sizes, times and splits of the files; raises as `files_digest`."""
        return {"root": str(self.root), "files": files_digest(self.root, self.paths, "WAV", self.is_test)}


def find_recordings(data: Path) -> Recordings:
    """The clips in directory `data`, found by `word_folders`. `split_clips` takes about 20 % for the test split.

    Raises:
        UserError: if the directory is missing, empty or in another layout; naming the place.
    """
    with named_errors(_WHAT):
        root, words = word_folders(data)
        folders = [clips_in(root / word) for word in words]
    paths = [path for clips, _ in folders for path in clips]
    labels = np.repeat(np.arange(len(words)), [len(clips) for clips, _ in folders])
    is_test, note = split_clips(paths, labels, words, root)
    beside = [path.name for _, others in folders for path in others]
    if beside:
        note = "; ".join(filter(None, (note, f"files beside the clips are left out: {listed(beside)}")))
    return Recordings(root=root, words=words, paths=paths, labels=labels, is_test=is_test, note=note)


def word_folders(data: Path) -> tuple[Path, tuple[str, ...]]:
    """The parent of the word folders, `data` or a folder up to two levels below; and the sorted words.

    A word is a folder with clips whose name does not start with `_` or a dot. If all 35 words of Speech Commands
    v0.02 have a folder, these are the words, and other folders are ignored.

    Raises:
        UserError: if `data` is missing, empty or in another layout; naming the place.
        OSError: if a folder cannot be read.
    """
    if (kind := kind_at(data)) != "directory":
        what = "not a directory" if kind else "no such directory"
        raise _unfit(data, what)
    level, single = [data], ""
    for _ in range(_DEPTH):
        words = {folder: _words_in(folder) for folder in level}
        found = [folder for folder in level if len(words[folder]) > 1]
        if len(found) > 1:
            raise UserError(f"{printable(str(data))}: word folders in {listed(found)}; give one of these folders")
        if found:
            return found[0].resolve(), words[found[0]]
        single = single or next((f"{folder / names[0]}" for folder, names in words.items() if names), "")
        level = [inner for folder in level for inner in visible(folder) if kind_at(inner) == "directory"]
    if single:
        raise _unfit(data, f"only one word folder, {single}")
    raise _unfit(data, "it has no word folders" if any(data.iterdir()) else "empty")


def clips_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """The clips of word `folder`, and the files beside them, such as notes; both sorted, without hidden files.

    A file with the suffix of WAV, FLAC or Ogg is a clip. So is a folder, for an error that names it.

    Raises:
        UserError: for recordings of another format, or no clip.
        OSError: if the folder cannot be read.
    """
    clips: list[Path] = []
    beside: list[Path] = []
    for path in sorted(visible(folder)):
        suffix = path.suffix.lower()
        if suffix in _OTHER_SOUNDS:
            raise UserError(f"{printable(str(path))}: only WAV, FLAC and Ogg are read; convert it or remove it")
        (clips if suffix in _SUFFIXES or kind_at(path) == "directory" else beside).append(path)
    if not clips:
        raise UserError(f"{printable(str(folder))}: no clip; expected recordings such as 0a7c2a8d{DIVIDER}0.wav")
    return clips, beside


def _words_in(folder: Path) -> tuple[str, ...]:
    named = (path for path in visible(folder) if not path.name.startswith("_"))
    inner = {path.name: path for path in named if kind_at(path) == "directory"}
    if inner.keys() >= set(WORDS):
        return WORDS
    words: list[str] = []
    for name in sorted(inner):
        if not any(path.suffix.lower() in (*_SUFFIXES, *_OTHER_SOUNDS) for path in visible(inner[name])):
            continue
        if len(words) == MOST_WORDS:
            raise UserError(f"{printable(str(folder))}: more than {MOST_WORDS:,} word folders; leave some out")
        words.append(utf8_name(name, folder, "a word's folder"))
    return tuple(words)


def _unfit(data: Path, what: str) -> UserError:
    return UserError(printable(f"{data}: {what}; {_EXPECTED}"))


def _fetch_archive(partial: Path) -> None:  # torchaudio checks its sha256
    from torchaudio.datasets import SPEECHCOMMANDS

    SPEECHCOMMANDS(partial, download=True)


PUBLISHED = Download(
    name="Speech Commands v0.02",
    size="2.3 GB",
    archive="speech_commands_v0.02.tar.gz",
    extracted="SpeechCommands",
    fetch=_fetch_archive,
)
