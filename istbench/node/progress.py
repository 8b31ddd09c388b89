"""How far a run is, told by rank 0 to the launching process through a few shared bytes: no cost to training."""

import mmap
import struct
from pathlib import Path

from istbench.results.events import Event
from istbench.results.header import Result

_FORMAT = "<q"
_NAME = "step"


class StepCounter:
    """A sink of steps alone: the last finished one, in a file that both sides map."""

    def __init__(self, directory: Path) -> None:
        path = directory / _NAME
        path.write_bytes(struct.pack(_FORMAT, 0))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), struct.calcsize(_FORMAT))

    def step(self, done: int) -> None:
        """Say that `done` steps are done."""
        struct.pack_into(_FORMAT, self._bytes, 0, done)

    def record(self, event: Event) -> None:
        """Nothing: a counter counts."""

    def finish(self, result: Result) -> None:
        """Nothing: the last step was told."""


def read_step(directory: Path) -> int:
    """The step last set in `directory`, 0 before the first."""
    try:
        return int(struct.unpack(_FORMAT, (directory / _NAME).read_bytes())[0])
    except (OSError, struct.error):
        return 0
