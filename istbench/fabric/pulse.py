"""Signs of life: every rank tells the others through the store that it lives, and what it does.

A thread of Python tells it, also while the rank computes or evaluates. C code that keeps Python's global lock for
longer than the time-out keeps the thread from telling, and counts as silence.
"""

import os
import threading
from collections.abc import Iterable, Sequence

from istbench.activity import current
from istbench.fabric.signed_store import SignedStore
from istbench.machine import host_name

_EVERY_S, _BEATS_PER_TIMEOUT = 1.0, 8
_STOPS_S = 2.0
_WAITS, _WORKS = "waits", "works"


def introduce(store: SignedStore, rank: int) -> None:
    """Tell the others that this rank has come, and the name of its host."""
    store.set(f"host/{rank}", host_name())


def not_come(store: SignedStore, world_size: int) -> list[int]:
    """The ranks that have not introduced themselves; none where the store does not answer either."""
    try:
        return [rank for rank in range(world_size) if not store.check([f"host/{rank}"])]
    except RuntimeError:
        return []


def hosts_by_rank(store: SignedStore, world_size: int) -> tuple[str, ...]:
    """The host of every rank, once all have introduced themselves."""
    return tuple(bytes(store.get(f"host/{rank}")).decode() for rank in range(world_size))


class Pulse:
    """This rank's signs of life, and those of the others.

    Attributes:
        every_s: seconds between two signs.
    """

    def __init__(self, store: SignedStore, rank: int, timeout_s: float, hosts: Sequence[str] = ()) -> None:
        self.every_s = min(_EVERY_S, timeout_s / _BEATS_PER_TIMEOUT)
        self._store, self._rank, self._hosts = store, rank, hosts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """Tell no more."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(_STOPS_S)

    def sign_of(self, rank: int) -> str:
        """The last sign of `rank`: its number and what the rank did, empty before the first.

        Raises:
            RuntimeError: where the store is lost.
        """
        key = f"alive/{rank}"
        return bytes(self._store.get(key)).decode() if self._store.check([key]) else ""

    def named(self, rank: int) -> str:
        """`rank`, with its host where there are several."""
        return f"rank {rank} on {self._hosts[rank]}" if self._hosts else f"rank {rank}"

    def all_named(self, ranks: Iterable[int]) -> str:
        """Several ranks as `named` has one."""
        ranks = list(ranks)
        if self._hosts or len(ranks) == 1:
            return ", ".join(map(self.named, ranks))
        return f"ranks {', '.join(map(str, ranks))}"

    def _run(self) -> None:
        count = 0
        while not self._over.is_set():
            try:
                self._store.set(f"alive/{self._rank}", f"{os.getpid()}.{count} {_state()}")
            except RuntimeError:  # the store is gone, which whoever waits for a word says
                return
            count += 1
            self._over.wait(self.every_s)


def _state() -> str:
    record = current.look()
    return f"{_WAITS if record.waits else _WORKS} {record}"


def waits(sign: str) -> bool:
    """Whether a rank waited for others by its `sign`."""
    return sign.split(" ")[1:2] == [_WAITS]


def doing(sign: str) -> str:
    """What a rank did by its `sign`."""
    return sign.split(" ", 2)[-1]
