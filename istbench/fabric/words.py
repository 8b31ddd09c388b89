"""Short texts between ranks through the process group's store, waited for as long as their sender lives."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from istbench.activity import Unchanged, current
from istbench.fabric.errors import FabricError, peers_needed
from istbench.fabric.pulse import Pulse, doing, waits
from istbench.fabric.signed_store import SignedStore

T = TypeVar("T")
_GRACE_S = 3.0  # how long a rank that gave up waits for the others to say that they did too
_SHORTEST_S, _LONGEST_S, _LATE = 3e-4, 0.05, 0.1
_SLACK_S = 2.0


class Words:
    """Words between rank 0 and the others, in the same order on every node.

    A word may take long, since its sender may have work that only it does. What counts is whether the sender shows
    signs of life: `timeout_s` seconds without one end the wait. `hosts` are by rank, where there are several.
    """

    def __init__(
        self, store: SignedStore, rank: int, world_size: int, timeout_s: float = 300.0, hosts: Sequence[str] = ()
    ) -> None:
        self._store, self._rank, self._world_size, self._timeout_s = store, rank, world_size, timeout_s
        self.pulse = Pulse(store, rank, timeout_s, hosts)
        self._answers = _Answers()
        self._said = 0

    def follow_zero(self, word: str = "") -> str:
        """Wait until rank 0 gets here too: it may have work that only it does. Returns its `word`.

        Raises:
            FabricError: where rank 0 falls silent, or the store does.
        """
        self._said += 1
        key = f"followed/{self._said}"
        if self._rank == 0:
            with self._told():
                self._store.set(key, word)
            return word
        return self._from([0], lambda _: key)[0]

    def tell_zero(self, word: str) -> list[str]:
        """Every node's `word`, by rank, on rank 0, which waits for them; none on the others.

        Raises:
            FabricError: where a rank falls silent, or the store does.
        """
        self._said += 1
        key = f"told/{self._said}"
        with self._told():
            self._store.set(f"{key}/{self._rank}", word)
        return [] if self._rank else self._from(range(self._world_size), lambda rank: f"{key}/{rank}")

    def post(self, key: str, word: str) -> None:
        """Say `word` under `key`, to whoever looks. From any thread."""
        self._store.set(f"posted/{key}", word)

    def posted(self, key: str) -> str | None:
        """What was posted under `key`, None where nothing was so far; does not wait. From any thread."""
        if not self._store.check([f"posted/{key}"]):
            return None
        return bytes(self._store.get(f"posted/{key}")).decode()

    def who_is_missing(self, operations: int, timed_out: bool) -> str:
        """Who did not come to an operation that this rank gave up, or lost a connection in; empty if nobody.

        A rank that gave up too, at so many `operations`, is not missing. Where no rank gave up, but connections
        broke, a rank is missing if it shows no sign of life.
        """
        try:
            return self._answers.of(lambda: self._missing(operations, timed_out), _GRACE_S + _SLACK_S)
        except (RuntimeError, TimeoutError):
            return ""

    def _missing(self, operations: int, timed_out: bool) -> str:
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        before = {rank: self.pulse.sign_of(rank) for rank in others}
        if timed_out:
            self._give_up(operations)
        time.sleep(_GRACE_S)
        absent = [rank for rank in others if not self._store.check([f"gave-up/{rank}"])]
        if not timed_out and len(absent) < len(others):  # the connection broke as others gave up
            timed_out = True
            self._give_up(operations)
        after = {rank: self.pulse.sign_of(rank) for rank in absent}
        silent = [rank for rank in absent if after[rank] == before[rank]]
        if silent:
            return f"nothing heard from {self.pulse.all_named(silent)}{self._doing(silent, after)}"
        late = [rank for rank in absent if not waits(after[rank])]
        if not timed_out or not late:
            return ""
        lives = "lives" if len(late) == 1 else "live"
        return f"{self.pulse.all_named(late)} did not come, but {lives}{self._doing(late, after)}"

    def _give_up(self, operations: int) -> None:
        self._store.set(f"gave-up/{self._rank}", str(operations))

    def _doing(self, ranks: Sequence[int], signs: dict[int, str]) -> str:
        """What `ranks` did by their last signs of life, in brackets."""
        did = {doing(signs[rank]) for rank in ranks} - {""}
        return f" ({'; '.join(sorted(did))})" if did else ""

    def _told(self) -> AbstractContextManager[None]:
        return peers_needed(f"rank {self._rank} could not hear from the others")

    def _from(self, ranks: Sequence[int], key_of: Callable[[int], str]) -> list[str]:
        """The word of each of `ranks`, at the key that `key_of` gives."""
        try:
            with self._told(), current.waiting(f"hearing from {self.pulse.all_named(ranks)}"):
                return self._answers.of(
                    lambda: [self._word(key_of(rank), rank) for rank in ranks], self._timeout_s + _SLACK_S
                )
        except TimeoutError:
            raise FabricError(
                f"rank {self._rank} gave up after {self._timeout_s:g} s: nothing heard from the store by which the "
                "ranks meet, on the host of the rendezvous"
            ) from None

    def _word(self, key: str, rank: int) -> str:
        began = looked = time.monotonic()
        unchanged = Unchanged(2 * self.pulse.every_s)
        while not self._store.check([key]):
            now = self._answers.heard()
            if now - looked >= self.pulse.every_s:
                looked, sign = now, self.pulse.sign_of(rank)
                if unchanged.seconds(rank, sign, now) >= self._timeout_s:
                    raise FabricError(
                        f"{self.pulse.named(self._rank)} gave up after {self._timeout_s:g} s: "
                        f"nothing heard from {self.pulse.named(rank)}{self._doing([rank], {rank: sign})}"
                    )
            # Not by the store's own wait: it keeps signs of life from being sent meanwhile.
            time.sleep(min(_LONGEST_S, max(_SHORTEST_S, _LATE * (now - began))))
        self._answers.heard()
        return bytes(self._store.get(key)).decode()


class _Answers:
    """Calls of the store on a thread of their own: where the store's host is lost, a call never returns."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._heard = 0.0

    def heard(self) -> float:
        """Say that the store answered; returns the time."""
        self._heard = time.monotonic()
        return self._heard

    def of(self, ask: "Callable[[], T]", silence_s: float) -> "T":
        """What `ask` returns or raises. It may take long, as long as it says `heard` every so often.

        Raises:
            TimeoutError: where it has not said so for `silence_s` seconds.
        """
        answered = threading.Event()
        found: list[T] = []
        failed: list[BaseException] = []

        def answer() -> None:
            try:
                found.append(ask())
            except BaseException as error:
                failed.append(error)
            answered.set()

        self.heard()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="words", daemon=True)
            self._thread.start()
        self._asked.put(answer)
        unchanged = Unchanged(1.0)
        while not answered.wait(min(1.0, silence_s)):
            if unchanged.seconds("heard", self._heard, time.monotonic()) >= silence_s:
                raise TimeoutError
        if failed:
            raise failed[0]
        return found[0]

    def _run(self) -> None:
        while True:
            self._asked.get()()
