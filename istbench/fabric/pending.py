"""A collective, or transfers, under way."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from istbench.fabric.recorder import Recorder


class Pending(dist.Work):
    """A collective that was started, to be waited for; what it fills is there from then on.

    torch.distributed takes it for a work of its own.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait: Callable[[], None] | None = wait

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once the collective is complete; at once where it was waited for before.

        Raises:
            FabricError: when a peer does not answer in the fabric's own time, whatever `timeout` is.
        """
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        return True


class Transfers:
    """Transfers under way beside what the node computes."""

    def __init__(self, complete: Callable[[], None], recorder: Recorder, numbers: Sequence[int]) -> None:
        self._complete: Callable[[], None] | None = complete
        self._recorder, self._numbers = recorder, numbers

    def finish(self) -> None:
        """Return once they are complete; the trace does not have it, as they are not needed here.

        Raises:
            FabricError: when a peer does not answer in time.
        """
        complete, self._complete = self._complete, None
        if complete is not None:
            with self._recorder.waiting():
                complete()

    def wait(self) -> None:
        """Return once they are complete, and are needed.

        Raises:
            FabricError: when a peer does not answer in time.
        """
        with self._recorder.waiting(*self._numbers, for_nodes=False):  # `finish` counts the seconds
            self.finish()
        self._numbers = ()
