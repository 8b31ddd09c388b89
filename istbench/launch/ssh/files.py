"""A run directory, brought from the host where it is written to the one that asked for it, and there to go on."""

import base64
from pathlib import Path

from istbench.errors import RunFailed
from istbench.launch.ssh.connection import Connection
from istbench.launch.ssh.remote_files import PART, clear, how_far, list_files, place, put, safe


def fetch(first: Connection, theirs: str, here: Path) -> None:
    """Have the run directory `theirs` of host `first` stand at `here` as well, all at once.

    Raises:
        Lost, Refused: where the host is, or cannot. RunFailed: where it cannot be written here.
    """
    listed = first.do("files", path=theirs)
    try:
        clear(here)
        for name, size in listed:
            if not safe(name):
                raise RunFailed(f"{first.name} names a file {name!r}, outside of the run directory")
            put(here, name, 0, b"")
            for offset in range(0, size, PART):
                part = base64.b64decode(first.do("read", path=theirs, name=name, offset=offset))
                put(here, name, offset, part)
        if listed:
            place(here)
    except OSError as error:
        raise RunFailed(
            f"cannot write {error.filename or here}: {error.strerror}; the run is on {first.name}, in {theirs}; "
            "the same command with another --out brings it"
        ) from None


def bring(first: Connection, here: Path, theirs: str) -> bool:
    """Have the run at `here` stand at `theirs` on host `first`, where it is further than what is there.

    Returns whether it was.

    Raises:
        Lost, Refused: where the host is, or cannot.
    """
    if how_far(here) <= first.do("standing", path=theirs):
        return False
    first.do("clear", path=theirs)
    for name, size in list_files(here):
        with (here / name).open("rb") as file:
            for offset in range(0, max(1, size), PART):
                content = base64.b64encode(file.read(PART)).decode()
                first.do("write", path=theirs, name=name, offset=offset, content=content)
    first.do("keep", path=theirs)
    return True
