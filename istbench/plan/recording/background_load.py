"""The cores that other programs use while a script is recorded."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from istbench.base.machine import busy_seconds, cores_of_others


class BackgroundLoad:
    """Counts the cores that other programs use from now on. It leaves out the children of this process."""

    def __init__(self) -> None:
        self._busy, self._own, self._started = busy_seconds(), _own_seconds(), time.perf_counter()

    def others_cores(self) -> float | None:
        """Mean number of cores; None if unknown."""
        seconds = time.perf_counter() - self._started
        return cores_of_others(self._busy, busy_seconds(), _own_seconds() - self._own, seconds)


def _own_seconds() -> float:
    """CPU seconds of this process and its children, such as those of a data loader."""
    ended = os.times()
    ticks = sum(_ticks(child) for child in _children(os.getpid()))
    return time.process_time() + ended.children_user + ended.children_system + ticks / os.sysconf("SC_CLK_TCK")


def _children(process: int) -> Iterator[int]:
    """The living children of a process, and theirs."""
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in _words(path):
            yield int(child)
            yield from _children(int(child))


def _ticks(process: int) -> int:
    """Ticks of user and system time of a living process."""
    after_name = _words(Path(f"/proc/{process}/stat"), after=") ")
    return sum(map(int, after_name[11:13]))


def _words(path: Path, after: str = "") -> list[str]:
    try:
        text = path.read_text()
    except OSError:  # it has just ended
        return []
    return (text.rpartition(after)[2] if after else text).split()
