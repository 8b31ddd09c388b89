"""Records the computation and messages of a node in some rounds after warm-up."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from istbench.cluster.trace import COMPUTE
from istbench.cluster.trace_builder import EarlierOperations, TraceBuilder, set_work
from istbench.fabric.timestamps import Timestamps

LEAST_ROUNDS, LEAST_STEPS = 3, 20
"""Of the sample in a trace, if the run is long enough."""


class Recorder:
    """Turns the fabric's operations and a method's marks into one node's trace.

    Records whole rounds, from the end of the first one until the sample has at least 3 rounds and 20 local steps.
    The sample begins after a round that the method ends `steady`.

    Attributes:
        running: whether it records now. finished: whether the sample is complete.
        least_steps: local steps that the sample has at least.
        window: messages that a method's priority queue sends to a node at a time; None if it has no queue.
        waits: all waits of this node for other nodes, in all rounds, sampled or not.
        steady: whether the next rounds exchange alike. A method with a warm-up sets it before it marks a round.
        warmup_steps, warmup_state, unlike_steps, last_bytes: as in `TraceMeta`.
    """

    def __init__(self, device: torch.device) -> None:
        self._builder = TraceBuilder()
        self.waits = Waits(Timestamps(device))
        # CPU time of this thread: other nodes on the same core hardly change it.
        self._computing = Timestamps(device, time.thread_time)
        self._since = self._computing.now()
        self._laps: list[tuple[Any, Any]] = []
        self._beside_s = 0.0
        self._beside: dict[int, float] = {}  # by lap
        self.running = self.finished = self._round_ended = False
        self._rounds = self._steps = 0
        self._unawaited: dict[int, str] = {}  # their kinds, by number
        self._earlier = EarlierOperations()
        self._worked: dict[int, float] = {}
        self._round_ends: list[int] = []  # in events
        self.window: int | None = None
        self.least_steps = LEAST_STEPS
        self.steady = True
        self.warmup_steps = self.warmup_state = self.unlike_steps = self.last_bytes = 0

    def resume(self) -> None:
        """Compute from now on: the time since the last event was not training."""
        self._since = self._computing.now()
        self._beside_s = 0.0

    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int:
        """Record the start of an operation, now or after operations `after`; returns its number for `waiting`.

        An operation from before the sample has a number below -1: the sample may wait for it.
        """
        if kind != "work":  # nobody waits for other nodes then
            self.waits.posted()
        if self.finished:
            return -1
        if not self.running:
            return self._earlier.post(kind, peers)
        self._compute()
        op = self._builder.post(kind, bytes, peers, priority, after)
        self._unawaited[op] = kind
        return op

    def worked(self, op: int, seconds: float) -> None:
        """Record that work `op` took `seconds` on its thread. Call it on that thread."""
        if op >= 0:
            self._worked[op] = seconds

    def computed_beside(self, seconds: float) -> None:
        """Count `seconds` of computing in which this thread waited for other threads of a pool of its own."""
        self._beside_s += seconds

    @contextmanager
    def waiting(self, *ops: int, for_nodes: bool = True) -> Iterator[None]:
        """Inside, the node waits for the operations `ops` and computes nothing. -1 means an unrecorded operation.

        for_nodes: whether `waits` counts this one, because other nodes take part.
        """
        recorded = [op for op in ops if op >= 0 or op in self._earlier]
        if recorded:
            self._compute()
        started = self.waits.now() if for_nodes else None
        yield
        if for_nodes:
            self.waits.add(started)
        if recorded:
            self._wait(recorded)

    def wait_all(self) -> None:
        """Record that the node has just waited for all posted transfers, without computing since the last one."""
        self.waits.add_since_post()
        if self.running:
            # In a wait, the CPU time of a thread stands still; the time of a GPU stream runs.
            if not self._computing.cuda:
                self._compute()
            self._wait([op for op, kind in self._unawaited.items() if kind != "work"])

    def mark(self, what: str) -> None:
        """Record the end of a "step" or a "round". Mark a round inside its last step."""
        if self.running:
            self._compute()
            self._builder.mark(what)
        self._rounds += what == "round"
        self._steps += what == "step"
        if what == "step" and self._round_ended:
            self._between_rounds()
        self._round_ended = what == "round"

    def _compute(self) -> None:
        if self._beside_s:
            self._beside[len(self._laps)] = self._beside_s
            self._beside_s = 0.0
        now = self._computing.now()
        self._laps.append((self._since, now))
        self._since = now
        self._builder.compute(0.0)

    def _wait(self, ops: Sequence[int]) -> None:
        for op in ops:
            if op in self._unawaited:
                self._builder.wait(op)
                del self._unawaited[op]
            elif op in self._earlier:
                self._builder.wait_before(*self._earlier.take(op))
        self.resume()

    def _between_rounds(self) -> None:
        """After the last step of a round: start or stop recording."""
        if self.running:
            self._round_ends.append(len(self._builder))
            if self._rounds >= LEAST_ROUNDS and self._steps >= self.least_steps:
                self.running, self.finished = False, True
        elif not self.finished and self.steady:
            self.running = True
            self._rounds = self._steps = 0
            self._earlier.close()
            self.resume()

    @property
    def whole_rounds(self) -> int:
        """Whole rounds recorded so far, the same on all nodes."""
        return len(self._round_ends)

    def events(self, rounds: int | None = None) -> NDArray[Any]:
        """The first whole `rounds`, by default all, as an array of dtype `istbench.cluster.trace.EVENT`.

        It may be empty.
        """
        ends = self._round_ends[:rounds]
        events = self._builder.to_arrays(ends[-1] if ends else 0)
        laps = self._laps[: int(np.count_nonzero(events["code"] == COMPUTE))]
        events["seconds"][events["code"] == COMPUTE] = [
            self._computing.seconds(*lap) + self._beside.get(number, 0.0) for number, lap in enumerate(laps)
        ]
        set_work(events, self._worked)
        return events


class Waits:
    """Seconds spent in waits, added up.

    On a processor by the wall clock: a waiting node computes nothing, with or without a core. The stream of a GPU
    stands still while host or stream wait for other nodes.
    """

    _FOLD_FROM = 4096

    def __init__(self, timestamps: Timestamps) -> None:
        self._timestamps = timestamps
        self._seconds = 0.0
        self._posted: Any = None
        self._pairs: list[tuple[Any, Any]] = []

    def now(self) -> Any:
        return self._timestamps.now()

    def add(self, started: Any) -> None:
        self._pairs.append((started, self.now()))
        self._posted = None
        if len(self._pairs) >= self._FOLD_FROM:  # the earlier half has finished long ago
            self._fold(self._FOLD_FROM // 2)

    def posted(self) -> None:
        self._posted = self.now()

    def add_since_post(self) -> None:
        """Add a wait from the start of the last operation to now."""
        if self._posted is not None:
            self.add(self._posted)

    def unawaited_s(self) -> float:
        """Seconds since the start of an asynchronous operation that no wait followed; on a GPU 0.

        A backward pass waits for its collectives in C++, without a record of it. Any thread may call this.
        """
        posted = self._posted
        return 0.0 if posted is None or self._timestamps.cuda else self._timestamps.seconds(posted, self.now())

    def seconds(self) -> float:
        """Seconds of all waits so far. On a GPU, call it after all kernels have finished."""
        self._fold(len(self._pairs))
        return self._seconds

    def _fold(self, count: int) -> None:
        for started, ended in self._pairs[:count]:
            self._seconds += self._timestamps.seconds(started, ended)
        del self._pairs[:count]
