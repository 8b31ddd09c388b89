"""Other processes of this machine, by /proc; on systems without it, none is known."""

import os
from pathlib import Path


def stat_of(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, see proc(5); none if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(*, ended: bool = False) -> list[int]:
    """Ids of the living descendants of this process; also of those that have `ended` and are not yet reaped."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        match stat_of(process):
            case [state, parent, *_] if ended or state != "Z":
                children.setdefault(int(parent), []).append(process)
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found
