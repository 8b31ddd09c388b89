"""Collectives and transfers in flight."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from istbench.fabric.recorder import Recorder


class Pending(dist.Work):
    """A collective in flight. After `wait`, its output is complete.

    torch.distributed accepts it as a work handle of its own.
    """

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__()
        self._wait: Callable[[], object] | None = wait

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the collective is complete. A second call returns at once.

        Raises:
            FabricError: if a peer does not answer within the fabric's time-out; `timeout` is ignored.
        """
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        return True


@dataclass(frozen=True)
class MeanInTurns:
    """An all-reduce between distant nodes in flight: its number in the record, and its next steps."""

    op: int
    steps: Iterator[None]


class Transfers:
    """Transfers in flight while the node computes."""

    def __init__(self, complete: Callable[[], None], recorder: Recorder, numbers: Sequence[int]) -> None:
        self._complete: Callable[[], None] | None = complete
        self._recorder, self._numbers = recorder, numbers

    def finish(self) -> None:
        """Wait until the transfers are complete, without a wait in the trace: the method does not need them here.

        Raises:
            FabricError: if a peer does not answer in time.
        """
        complete, self._complete = self._complete, None
        if complete is not None:
            with self._recorder.waiting():
                complete()

    def wait(self) -> None:
        """Wait until the transfers are complete, with a wait in the trace: the method needs them here.

        Raises:
            FabricError: if a peer does not answer in time.
        """
        with self._recorder.waiting(*self._numbers, for_nodes=False):  # `finish` counts the seconds
            self.finish()
        self._numbers = ()
