"""Recorded words, a folder each, as Speech Commands has them: WORD/SPEAKER_nohash_N.wav."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.errors import printable
from istbench.workloads.prepared import files_digest, named_errors
from istbench.workloads.speech_data.clip import Clip, read_clip
from istbench.workloads.speech_data.folders import clips_in, word_folders
from istbench.workloads.speech_data.split import DIVIDER, split_clips
from istbench.workloads.speech_data.words import CLIPS, FIRST_CLIPS, FIRST_WORDS, WORDS

_WHAT = "the recordings"
_READERS = 4
_LONGEST_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """Recorded clips, sorted by word and name.

    Attributes:
        root: the folder that holds those of the words.
        words: the words in the order of their numbers.
        paths, labels, is_test: of each clip its path, word (int64 [n]) and split (bool [n]).
        note: what to tell of the split; may be empty.
    """

    root: Path
    words: tuple[str, ...]
    paths: Sequence[Path]
    labels: np.ndarray
    is_test: np.ndarray
    note: str

    @property
    def data_set(self) -> tuple[str, str, int | None]:
        """The kind of data, its name for readers, and the clips of all of it where it is known.

        It is Speech Commands by its words and by speakers in all file names.
        """
        official = all(DIVIDER in path.name for path in self.paths)
        if official and self.words == WORDS:
            return "speech_commands", "speech_commands", CLIPS
        if official and self.words == FIRST_WORDS:
            return "speech_commands_v0.01", "speech_commands v0.01", FIRST_CLIPS
        return "words", f"words in {printable(self.root.name)[:_LONGEST_SHOWN]}", None

    def cache_key(self) -> dict[str, Any]:
        """Names, sizes, times and splits of the files, which tell whether they are still the same.

        Raises:
            UserError: naming the first that is no file.
        """
        with named_errors(_WHAT):
            digest = files_digest(self.root, self.paths, self.is_test, "WAV")
        return {"root": str(self.root), "files": digest}

    def chunks(self, size: int) -> Iterator[list[Clip]]:
        """All clips in order, at most `size` at a time.

        Raises:
            UserError: naming the first file that is no clip.
        """
        with ThreadPoolExecutor(_READERS) as readers:
            for first in range(0, len(self.paths), size):
                yield list(readers.map(read_clip, self.paths[first : first + size]))


def find_recordings(data: Path) -> Recordings:
    """The clips in directory `data`, as `word_folders` finds them; about 20 % are for testing, by `split_clips`.

    Raises:
        UserError: when the directory is missing, empty or in another layout, naming what is wrong.
    """
    with named_errors(_WHAT):
        root, words = word_folders(data)
        clips = [clips_in(root / word) for word in words]
    paths = [path for of_word in clips for path in of_word]
    labels = np.repeat(np.arange(len(words)), [len(of_word) for of_word in clips])
    is_test, note = split_clips(paths, labels, words, root)
    return Recordings(root=root, words=words, paths=paths, labels=labels, is_test=is_test, note=note)
