"""Heartbeats: every rank writes to the store that it lives, and its current activity.

A Python thread writes them, also while the rank computes or evaluates. C code that holds Python's global lock for
longer than the time-out stops the thread, and counts as silence.
"""

import os
import threading
import time
from collections.abc import Iterable, Sequence

from istbench.base.activity import current
from istbench.base.machine import host_name
from istbench.fabric.signed_store import SignedStore

_EVERY_S, _BEATS_PER_TIMEOUT = 1.0, 8
_STOPS_S = 2.0
_PAUSE_S, _PAUSES = 0.3, 99
_WAITS, _WORKS = "waits", "works"


def introduce(store: SignedStore, rank: int) -> None:
    """Write to the store that this rank has come, with the name of its host."""
    store.set(f"host/{rank}", host_name())


def not_come(store: SignedStore, world_size: int) -> list[int]:
    """The ranks that have not introduced themselves; none if the store does not answer."""
    try:
        return [rank for rank in range(world_size) if store.read(f"host/{rank}") is None]
    except RuntimeError:
        return []


def hosts_by_rank(store: SignedStore, world_size: int) -> tuple[str, ...]:
    """The host of every rank. Call it after all ranks have introduced themselves."""
    return tuple(store.find(f"host/{rank}") or "" for rank in range(world_size))


class Heartbeats:
    """The heartbeats of this rank and of the others.

    Attributes:
        every_s: seconds between two heartbeats.
    """

    def __init__(self, store: SignedStore, rank: int, timeout_s: float, hosts: Sequence[str] = ()) -> None:
        self.every_s = min(_EVERY_S, timeout_s / _BEATS_PER_TIMEOUT)
        self._store, self._rank, self._hosts = store, rank, hosts
        self._pauses: list[tuple[float, float]] = []  # the end of each by `time.perf_counter`, and its seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(_STOPS_S)

    def paused_s(self, since: float, until: float) -> float:
        """Seconds in which this process did not run, in pauses that ended between two times of `perf_counter`."""
        return sum(seconds for ended, seconds in self._pauses if since <= ended <= until)

    def sign_of(self, rank: int) -> str:
        """The last heartbeat of `rank`: a number and the rank's activity; empty before the first.

        Raises:
            RuntimeError: if the store is lost.
        """
        return self._store.read(f"alive/{rank}") or ""

    def named(self, rank: int) -> str:
        """The text "rank R", with its host if there are several hosts."""
        return f"rank {rank} on {self._hosts[rank]}" if self._hosts else f"rank {rank}"

    def all_named(self, ranks: Iterable[int]) -> str:
        """The same for several ranks."""
        ranks = list(ranks)
        if self._hosts or len(ranks) == 1:
            return ", ".join(map(self.named, ranks))
        return f"ranks {', '.join(map(str, ranks))}"

    def _run(self) -> None:
        count = 0
        while not self._over.is_set():
            try:
                record = current.look()
                state = f"{_WAITS if record.waits else _WORKS} {record}"
                self._store.set(f"alive/{self._rank}", f"{os.getpid()}.{count} {state}")
            except RuntimeError:  # the store is lost; ranks that wait for a text report it
                return
            count += 1
            before = time.perf_counter()
            self._over.wait(self.every_s)
            now = time.perf_counter()
            if now - before > self.every_s + _PAUSE_S:  # the process was stopped, or had no core
                self._pauses = [*self._pauses[-_PAUSES:], (now, now - before - self.every_s)]


def waits(sign: str) -> bool:
    """Whether the rank waited for others at its heartbeat `sign`."""
    return sign.split(" ")[1:2] == [_WAITS]


def doing(sign: str) -> str:
    """The rank's activity at its heartbeat `sign`."""
    return sign.split(" ", 2)[-1]
