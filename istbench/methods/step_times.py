"""What the seconds of a step went into."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class StepTimes:
    """Seconds by the part of a step, of this node, since `shares` was called last."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """What happens inside is of part `name`."""
        started = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - started

    def shares(self) -> dict[str, float]:
        """Each part's share of all seconds, by name; counts anew."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        total = sum(seconds.values())
        return {name: own / total for name, own in seconds.items()} if total else {}
