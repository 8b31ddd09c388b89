"""Asking again until something is so."""

import time
from collections.abc import Callable
from typing import TypeVar

from istbench.errors import RunFailed

T = TypeVar("T")


def pause(seconds: float) -> None:
    """Do nothing for a while."""
    time.sleep(seconds)


def wait_for(ready: Callable[[], T | None], every_s: float, limit_s: float, what: str) -> T:
    """What `ready` returns once that is not None.

    Raises:
        RunFailed: saying `what` did not happen, after about `limit_s`.
    """
    for _ in range(max(1, round(limit_s / every_s))):
        answer = ready()
        if answer is not None:
            return answer
        pause(every_s)
    raise RunFailed(f"{what} within {limit_s / 60:.0f} minutes; run the same command again, or `istbench aws down`")
