"""Find the word folders of a directory: folders with clips, or the 35 of Speech Commands v0.02."""

from pathlib import Path

from istbench.base.errors import UserError, printable
from istbench.workloads.prepared import listed, utf8_name, visible
from istbench.workloads.speech_data.split import DIVIDER
from istbench.workloads.speech_data.words import MOST_WORDS, WORDS

_EXPECTED = "expected two or more folders of clips, one per word, such as backward/, bed/, ..., zero/"
_SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus")
_OTHER_SOUNDS = (".aac", ".aif", ".aiff", ".au", ".caf", ".m4a", ".mp3", ".mp4", ".webm", ".wma")
_DEPTH = 3


def word_folders(data: Path) -> tuple[Path, tuple[str, ...]]:
    """The parent of the word folders, `data` or a folder up to two levels below; and the sorted words.

    A word is a folder with clips whose name does not start with `_` or a dot. If all 35 words of Speech Commands
    v0.02 have a folder, these are the words, and other folders are ignored.

    Raises:
        UserError: if `data` is missing, empty or in another layout; naming the place.
        OSError: if a folder cannot be read.
    """
    if not data.is_dir():
        what = "not a directory" if data.exists() else "no such directory"
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
        level = [inner for folder in level for inner in visible(folder) if inner.is_dir()]
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
        (clips if suffix in _SUFFIXES or path.is_dir() else beside).append(path)
    if not clips:
        raise UserError(f"{printable(str(folder))}: no clip; expected recordings such as 0a7c2a8d{DIVIDER}0.wav")
    return clips, beside


def _words_in(folder: Path) -> tuple[str, ...]:
    inner = {path.name: path for path in visible(folder) if not path.name.startswith("_") and path.is_dir()}
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
