"""A run directory, brought from the host where it is written to the one that asked for it, and there to go on."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from istbench.errors import RunFailed
from istbench.files import sync
from istbench.launch.ssh.connection import Connection
from istbench.launch.ssh.remote_files import (
    LATEST,
    PART,
    beside,
    clear,
    how_far,
    list_files,
    published,
    put,
    safe,
    stamps,
)

Pace = Callable[[float, int, int], None]
"""Called after each part of a file with the seconds that it took, its bytes, and the bytes still to come.

Where it raises, nothing is brought.
"""
_EVENTS, _HEADER = "events.jsonl", "run.json"


def at_once(_seconds: float, _size: int, _left: int) -> None:
    """The pace without rests."""


def fetch(first: Connection, theirs: str, here: Path, pace: Pace = at_once) -> None:
    """Have the run directory `theirs` of host `first` stand at `here` as well, though it be written meanwhile.

    Only what differs in size or time is brought, put together beside `here`, and then takes its place file by file:
    wherever this ends, what is here has the checkpoint of before or the new one, whole, and events at least as new.

    Raises:
        Lost, Refused: where the host is, or cannot. RunFailed: where it cannot be written here.
    """
    found = first.do("hold", path=theirs, have=stamps(here))
    names, new = found["names"], found["new"]
    if _HEADER not in names:
        return
    try:
        clear(here)
        ahead = sum(size for _, size, _ in new)
        for name, size, changed in new:
            if not safe(name):
                raise RunFailed(f"{first.name} names a file {name!r}, outside of the run directory")
            ahead -= size
            _bring_file(first, theirs, here, (name, size, changed), pace, ahead)
        _settle(here, names, [name for name, _, _ in new])
    except OSError as error:
        raise RunFailed(
            f"cannot write {error.filename or here}: {error.strerror}; the run is on {first.name}, in {theirs}; "
            "the same command with another --out brings it"
        ) from None
    finally:
        clear(here)
    first.do("release", path=theirs)


def _bring_file(
    first: Connection, theirs: str, here: Path, stamp: tuple[str, int, int], pace: Pace, ahead: int
) -> None:
    """Put file `stamp` of what is held together beside `here`; of events, only lines that are new are sent.

    ahead: bytes of the files after it.
    """
    name, size, changed = stamp

    def part(offset: int) -> bytes:
        began = time.monotonic()
        content: bytes = first.do("read", path=theirs, name=name, offset=offset)
        pace(time.monotonic() - began, len(content), ahead + max(0, size - offset - len(content)))
        return content

    start, before, last = 0, b"", b""
    if name == _EVENTS:
        before, last = _lines(here / name)
        start = len(before)
    content = part(start) if size else b""
    if not content.startswith(last):  # lines of another run
        start, before, content = 0, b"", part(0)
    put(here, name, 0, before + content, changed)
    for offset in range(start + PART, size, PART):
        put(here, name, offset, part(offset), changed)


def _lines(path: Path) -> tuple[bytes, bytes]:
    """The lines of file `path` but for the last whole one, and that; nothing where there is no file."""
    content = b""
    with suppress(FileNotFoundError):
        content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, max(0, end - 1)) + 1
    return content[:start], content[start:end]


def _settle(here: Path, names: Collection[str], new: Collection[str]) -> None:
    """Have the `new` files that were put together stand at `here`, and none but `names`.

    What says that others are complete comes after them.
    """
    for name in new:
        sync(beside(here) / name)
    if LATEST in new and any(name.startswith(f"checkpoint/{published(here)}/") for name in new):
        (here / LATEST).unlink()  # its files are about to change one by one
    order = {_HEADER: 1, LATEST: 2}
    for name in sorted(new, key=lambda name: order.get(name, 0)):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (beside(here) / name).replace(here / name)
    for name in {name for name, _ in list_files(here)} - set(names):
        (here / name).unlink()
    for folder in sorted((path for path in here.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):
            folder.rmdir()  # where it is empty


def bring(first: Connection, here: Path, theirs: str) -> bool:
    """Have the run at `here` stand at `theirs` on host `first`, where it is further than what is there.

    Returns whether it was.

    Raises:
        Lost, Refused: where the host is, or cannot.
    """
    if how_far(here) <= first.do("standing", path=theirs):
        return False
    first.do("clear", path=theirs)
    for name, size, changed in stamps(here):
        with (here / name).open("rb") as file:
            for offset in range(0, max(1, size), PART):
                first.do("write", path=theirs, name=name, offset=offset, content=file.read(PART), changed=changed)
    first.do("keep", path=theirs)
    return True
