"""Which folders of a directory are words: those that hold clips, or the 35 of Speech Commands v0.02."""

from pathlib import Path

from istbench.errors import UserError, printable
from istbench.workloads.prepared import listed, utf8_name, visible
from istbench.workloads.speech_data.split import DIVIDER
from istbench.workloads.speech_data.words import MOST_WORDS, WORDS

_EXPECTED = "expected folders of clips, one a word, two or more, such as backward/, bed/, ..., zero/"
_SUFFIXES = (".wav", ".flac", ".ogg")
_DEPTH = 3


def word_folders(data: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder that holds the word folders, which is `data` or at most two levels down; and the words, sorted.

    A word is a folder with a clip in it whose name starts with neither `_` nor a dot. Where all 35 words of Speech
    Commands v0.02 have a folder, these are the words, and other folders are ignored.

    Raises:
        UserError: when `data` is missing, empty or in another layout, naming what is wrong.
        OSError: when a folder cannot be read.
    """
    if not data.is_dir():
        what = "not a directory" if data.exists() else "no such directory"
        raise _unfit(data, what)
    level, single = [data], ""
    for _ in range(_DEPTH):
        words = {folder: _words_in(folder) for folder in level}
        found = [folder for folder in level if len(words[folder]) > 1]
        if len(found) > 1:
            raise UserError(f"{printable(str(data))}: word folders in {listed(found)}; name one of these")
        if found:
            return found[0].resolve(), words[found[0]]
        single = single or next((f"{folder / names[0]}" for folder, names in words.items() if names), "")
        level = [inner for folder in level for inner in visible(folder) if inner.is_dir()]
    if single:
        raise _unfit(data, f"only one word folder, {single}")
    raise _unfit(data, "no word folders in it" if any(data.iterdir()) else "empty")


def clips_in(folder: Path) -> list[Path]:
    """All files of word `folder` but hidden ones, sorted: whatever lies there is a clip.

    Raises:
        UserError: where there is none.
        OSError: when it cannot be read.
    """
    clips = sorted(visible(folder))
    if not clips:
        raise UserError(f"{printable(str(folder))}: empty; expected recordings such as 0a7c2a8d{DIVIDER}0.wav")
    return clips


def _words_in(folder: Path) -> tuple[str, ...]:
    inner = {path.name: path for path in visible(folder) if not path.name.startswith("_") and path.is_dir()}
    if inner.keys() >= set(WORDS):
        return WORDS
    words: list[str] = []
    for name in sorted(inner):
        if not any(path.suffix.lower() in _SUFFIXES for path in visible(inner[name])):
            continue
        if len(words) == MOST_WORDS:
            raise UserError(f"{printable(str(folder))}: more than {MOST_WORDS:,} word folders; leave some out")
        words.append(utf8_name(name, folder, "a word's folder"))
    return tuple(words)


def _unfit(data: Path, what: str) -> UserError:
    return UserError(printable(f"{data}: {what}; {_EXPECTED}"))
