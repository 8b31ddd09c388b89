"""Recorded words, a folder each as in Speech Commands (WORD/SPEAKER_nohash_N.wav), and its download."""

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.errors import printable
from istbench.workloads import prepared
from istbench.workloads.base import Progress
from istbench.workloads.prepared import files_digest, listed, named_errors
from istbench.workloads.speech_data.clip import Clip, read_clip
from istbench.workloads.speech_data.folders import clips_in, word_folders
from istbench.workloads.speech_data.split import DIVIDER, split_clips
from istbench.workloads.speech_data.words import CLIPS, FIRST_CLIPS, FIRST_WORDS, WORDS

_WHAT = "the recordings"
_READERS = 4
_LONGEST_SHOWN = 100
_TASK = "downloading Speech Commands v0.02 (2.3 GB)"
_WAY_OUT = "download speech_commands_v0.02.tar.gz by other means, extract it and give the folder with --data DIR"


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
        """A JSON-ready key from names, sizes, times and splits of the files.

        Raises:
            UserError: naming the first path that is not a file.
        """
        with named_errors(_WHAT):
            digest = files_digest(self.root, self.paths, self.is_test, "WAV")
        return {"root": str(self.root), "files": digest}

    def chunks(self, size: int) -> Iterator[list[Clip]]:
        """Yield all clips in order, at most `size` at a time.

        Raises:
            UserError: naming the first file that is not a clip.
        """
        with ThreadPoolExecutor(_READERS) as readers:
            for first in range(0, len(self.paths), size):
                yield list(readers.map(read_clip, self.paths[first : first + size]))


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


def download_speech_commands(folder: Path, progress: Progress) -> Path:
    """Download Speech Commands v0.02 (2.3 GB) and extract it under `folder` unless it is there.

    torchaudio downloads the archive and checks its sha256. An interrupted extraction starts again from the archive.
    Returns the extracted directory, which exists only if it is complete.

    Raises:
        UserError: if the network fails, the archive is not the published one, or the disk is full.
    """
    return prepared.download(
        folder, "Speech Commands", _fetch_archive, task=_TASK, way_out=_WAY_OUT, progress=progress
    )


def _fetch_archive(partial: Path) -> None:
    from torchaudio.datasets import SPEECHCOMMANDS

    # torchaudio does not check whether an extracted folder is complete.
    shutil.rmtree(partial / "SpeechCommands", ignore_errors=True)
    SPEECHCOMMANDS(partial, download=True)
    for archive in partial.glob("*.tar.gz"):
        archive.unlink()
