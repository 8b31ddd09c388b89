"""A collective under way."""

from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist


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
