"""Short texts between ranks through the process group's store. A reader waits while the sender lives."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from istbench.base.activity import Unchanged, current
from istbench.base.threads import answer_by
from istbench.fabric.errors import FabricError, peers_needed
from istbench.fabric.heartbeats import Heartbeats, doing, waits
from istbench.fabric.signed_store import SignedStore

T = TypeVar("T")
_SHORTEST_S, _LONGEST_S, _LATE = 3e-4, 0.05, 0.1
_SLACK_S = 2.0


class Texts:
    """Texts between rank 0 and the others. Every node sends and reads them in the same order.

    A text may take long, since its sender may have work of its own. The wait ends after `timeout_s` seconds without
    a heartbeat of the sender. `hosts` are the hosts by rank, if there are several. A rank that timed out waits
    `grace_s` for others to report the same.
    """

    def __init__(
        self,
        store: SignedStore,
        rank: int,
        world_size: int,
        timeout_s: float = 300.0,
        hosts: Sequence[str] = (),
        grace_s: float = 3.0,
    ) -> None:
        self._store, self._rank, self._world_size, self._timeout_s = store, rank, world_size, timeout_s
        self._grace_s = grace_s
        self.heartbeats = Heartbeats(store, rank, timeout_s, hosts)
        self._answers, self._background = _Answers(), _Answers()
        self._said = 0

    def broadcast(self, word: str = "") -> str:
        """Wait until rank 0 calls this too, and return its `word`. Rank 0 may have work of its own before.

        Raises:
            FabricError: if rank 0 or the store falls silent.
        """
        self._said += 1
        key = f"followed/{self._said}"
        if self._rank == 0:
            with self._told():
                self._store.set(key, word)
            return word
        return self._from([0], lambda _: key)[0]

    def gather(self, word: str) -> list[str]:
        """Send `word` to rank 0, which waits for all and returns them by rank. Other ranks return an empty list.

        Raises:
            FabricError: if a rank or the store falls silent.
        """
        self._said += 1
        key = f"told/{self._said}"
        with self._told():
            self._store.set(f"{key}/{self._rank}", word)
        return [] if self._rank else self._from(range(self._world_size), lambda rank: f"{key}/{rank}")

    def new_key(self) -> str:
        """A key for `post` that no other call returns; the same on every node."""
        self._said += 1
        return str(self._said)

    def post(self, key: str, word: str) -> None:
        """Write `word` under `key`, for every rank. Any thread may call this."""
        self._store.set(f"posted/{key}", word)

    def posted(self, key: str) -> str | None:
        """The text posted under `key`, or None; does not wait. Any thread may call this."""
        return self._store.read(f"posted/{key}")

    def wait_posted(self, key: str, rank: int) -> str:
        """Wait for the word that `rank` posts under `key`. Any thread may call this, but one at a time.

        Raises:
            FabricError: if the rank or the store falls silent.
        """
        return self._heard([rank], lambda _: f"posted/{key}", self._background)[0]

    def who_is_missing(self, operations: int, timed_out: bool) -> str:
        """Name the ranks that did not join this rank's failed operation; empty if none is missing.

        A rank that reports a time-out itself is not missing. If no rank timed out but connections broke, a rank
        without heartbeats is missing.
        """
        try:
            return self._answers.of(lambda: self._missing(operations, timed_out), self._grace_s + _SLACK_S)
        except (RuntimeError, TimeoutError):
            return ""

    def _missing(self, operations: int, timed_out: bool) -> str:
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        before = {rank: self.heartbeats.sign_of(rank) for rank in others}
        if timed_out:
            self._give_up(operations)
        time.sleep(self._grace_s)
        absent = [rank for rank in others if self._store.read(f"gave-up/{rank}") is None]
        if not timed_out and len(absent) < len(others):  # the connection broke because others timed out
            timed_out = True
            self._give_up(operations)
        after = {rank: self.heartbeats.sign_of(rank) for rank in absent}
        silent = [rank for rank in absent if after[rank] == before[rank]]
        if silent:
            return f"no heartbeat from {self.heartbeats.all_named(silent)}{self._doing(silent, after)}"
        late = [rank for rank in absent if not waits(after[rank])]
        if not timed_out or not late:
            return ""
        are = "is" if len(late) == 1 else "are"
        return f"{self.heartbeats.all_named(late)} did not join, but {are} alive{self._doing(late, after)}"

    def _give_up(self, operations: int) -> None:
        self._store.set(f"gave-up/{self._rank}", str(operations))

    def _doing(self, ranks: Sequence[int], signs: dict[int, str]) -> str:
        """The activity of `ranks` at their last heartbeats, in brackets."""
        did = {doing(signs[rank]) for rank in ranks} - {""}
        return f" ({'; '.join(sorted(did))})" if did else ""

    def _told(self) -> AbstractContextManager[None]:
        return peers_needed(f"rank {self._rank} lost the store of the ranks")

    def _from(self, ranks: Sequence[int], key_of: Callable[[int], str]) -> list[str]:
        """The text of each of `ranks`, at the key `key_of(rank)`, for the thread that trains."""
        with current.waiting(f"hearing from {self.heartbeats.all_named(ranks)}"):
            return self._heard(ranks, key_of, self._answers)

    def _heard(self, ranks: Sequence[int], key_of: Callable[[int], str], answers: "_Answers") -> list[str]:
        try:
            with self._told():
                return answers.of(
                    lambda: [self._word(key_of(rank), rank, answers) for rank in ranks], self._timeout_s + _SLACK_S
                )
        except TimeoutError:
            raise FabricError(
                f"rank {self._rank} gave up after {self._timeout_s:g} s: no answer from the store of the "
                "ranks, on the rendezvous host"
            ) from None

    def _word(self, key: str, rank: int, answers: "_Answers") -> str:
        began = looked = time.monotonic()
        unchanged = Unchanged(2 * self.heartbeats.every_s)
        while (word := self._store.read(key)) is None:
            now = answers.heard()
            if now - looked >= self.heartbeats.every_s:
                looked, sign = now, self.heartbeats.sign_of(rank)
                if unchanged.seconds(rank, sign, now) >= self._timeout_s:
                    raise FabricError(
                        f"{self.heartbeats.named(self._rank)} gave up after {self._timeout_s:g} s: "
                        f"no heartbeat from {self.heartbeats.named(rank)}{self._doing([rank], {rank: sign})}"
                    )
            # The store's own wait would block the heartbeats.
            time.sleep(min(_LONGEST_S, max(_SHORTEST_S, _LATE * (now - began))))
        answers.heard()
        return word


class _Answers:
    """Calls the store on a thread of its own, since a call to a lost host never returns."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._heard = 0.0

    def heard(self) -> float:
        """Note that the store answered; returns the time."""
        self._heard = time.monotonic()
        return self._heard

    def of(self, ask: Callable[[], T], silence_s: float) -> T:
        """Call `ask` and return its result. It may take long if it calls `heard` from time to time.

        Raises:
            TimeoutError: after `silence_s` seconds without a call of `heard`.
            BaseException: the error of `ask`.
        """
        answer: Future[T] = Future()
        self.heard()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="texts", daemon=True)
            self._thread.start()
        self._calls.put(partial(answer_by, ask, answer))
        unchanged = Unchanged(1.0)
        while not wait([answer], min(1.0, silence_s)).done:
            if unchanged.seconds("heard", self._heard, time.monotonic()) >= silence_s:
                raise TimeoutError
        return answer.result()

    def _run(self) -> None:
        while True:
            self._calls.get()()
