"""Recorded words in the layout of the Speech Commands archive: WORD/SPEAKER_nohash_N.wav, mono, 16 kHz."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.errors import UserError, printable
from istbench.workloads.speech_data.clip import read_clip, require_file
from istbench.workloads.speech_data.split import DIVIDER, split_clips
from istbench.workloads.speech_data.words import WORDS

_EXPECTED = "expected the folders of Speech Commands v0.02, one a word: backward/, bed/, ..., zero/"
_READERS = 4


@dataclass(frozen=True)
class Recordings:
    """Recorded clips, sorted by word and name: path, word (int64 [n]) and split (bool [n]) of each.

    note: what to tell of the split; may be empty.
    """

    root: Path
    paths: Sequence[Path]
    labels: np.ndarray
    is_test: np.ndarray
    note: str

    def cache_key(self) -> dict[str, Any]:
        """Names, sizes, times and splits of the files, which tell whether they are still the same.

        Raises:
            UserError: naming the first that is no file.
        """
        digest = hashlib.sha256()
        for path, is_test in zip(self.paths, self.is_test, strict=True):
            with _named_errors():
                found = path.stat()
            require_file(path, found)
            said = f"{path.relative_to(self.root)} {found.st_size} {found.st_mtime_ns} {int(is_test)}\n"
            digest.update(os.fsencode(said))
        return {"root": str(self.root), "files": digest.hexdigest()}

    def chunks(self, size: int) -> Iterator[np.ndarray]:
        """All clips in order, at most `size` at a time: float32 [b, 16000], as `read_clip` returns them.

        Raises:
            UserError: naming the first file that is no clip.
        """
        with ThreadPoolExecutor(_READERS) as readers:
            for first in range(0, len(self.paths), size):
                yield np.stack(list(readers.map(read_clip, self.paths[first : first + size])))


def find_recordings(data: Path) -> Recordings:
    """The clips in directory `data`, which holds the word folders itself or at most two levels down.

    About 20 % are for testing, by `split_clips`. Folders that are not one of the 35 words are ignored, as are
    hidden files.

    Raises:
        UserError: when the directory is missing, empty or in another layout, naming what is wrong.
    """
    with _named_errors():
        return _find(data)


def _find(data: Path) -> Recordings:
    root = _word_root(data)
    missing = [word for word in WORDS if not (root / word).is_dir()]
    if missing:
        raise UserError(f"{root}: no folder for {_listed(missing)}; {_EXPECTED}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, word in enumerate(WORDS):
        clips = sorted(path for path in (root / word).iterdir() if not path.name.startswith("."))
        if not clips:
            raise UserError(f"{root / word}: empty; expected recordings such as 0a7c2a8d{DIVIDER}0.wav")
        paths += clips
        labels += [label] * len(clips)
    numbers = np.array(labels, np.int64)
    is_test, note = split_clips(paths, numbers, WORDS, root)
    return Recordings(root, paths, numbers, is_test, note)


def _word_root(data: Path) -> Path:
    if not data.is_dir():
        what = "not a directory" if data.exists() else "no such directory"
        raise UserError(f"{data}: {what}; {_EXPECTED}")
    level = [data]
    for _ in range(3):
        found = [folder for folder in level if any((folder / word).is_dir() for word in WORDS)]
        if len(found) > 1:
            raise UserError(f"{data}: word folders in {_listed([str(f) for f in found])}; name one of these")
        if found:
            return found[0].resolve()
        level = [inner for folder in level for inner in sorted(folder.iterdir()) if inner.is_dir()]
    what = "no word folders in it" if any(data.iterdir()) else "empty"
    raise UserError(f"{data}: {what}; {_EXPECTED}")


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = "the recordings" if error.filename is None else os.fsdecode(error.filename)
        raise UserError(f"{printable(name)}: {error.strerror or error}; make it readable or remove it") from None


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
