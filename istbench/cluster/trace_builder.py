"""Recording the events of one node, and merging the nodes' events into a trace."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.trace import (
    AFTER,
    COMPUTE,
    EVENT,
    KINDS,
    MARK,
    MARKS,
    NOT_COLLECTIVE,
    POST,
    WAIT,
    WAIT_BEFORE,
    WITH_PEER,
    WORK,
    Trace,
    TraceMeta,
)
from istbench.cluster.trace_problems import problem

_KIND_CODE = {name: code for code, name in enumerate(KINDS)}
_MARK_CODE = {name: code for code, name in enumerate(MARKS)}
_COLLECTIVES = (-1, -1)  # all collectives are numbered together


class TraceBuilder:
    """Records the events of one node, with one list append for each event: cheap enough for a training loop.

    It leaves out operations from before `clear`, and waits for them.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.clear()

    def __len__(self) -> int:
        return len(self._events)

    def clear(self) -> None:
        """Forget all events and number operations from 0."""
        self._events: list[tuple[int, int, int, int, int, int, int, float, float]] = []
        self._operations = 0
        self._matches: dict[tuple[int, int], int] = {}

    def compute(self, seconds: float) -> None:
        """Record `seconds` of computing since the last event."""
        self._events.append((COMPUTE, 0, -1, -1, 0, -1, 0, seconds, self._clock()))

    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int:
        """Record the start of an operation; returns its number for `wait`.

        Args:
            kind: one of `KINDS`. Every node must post collectives in the same order. "work" is computing in a
                second thread of the node, one piece at a time, by priority.
            bytes: size of the tensor; for an all-gather, of this node's part; for a reduce-scatter, of all parts.
            peers: of a send the receiver, of a receive the sender, of a broadcast the root; else empty.
            priority: of a send or work; lower is more urgent.
            after: operations of this node that must finish before a send, receive or work starts. For example, a
                parameter server updates after the pushes of all workers, and replies after the update.
        """
        code = _KIND_CODE[kind]
        peer = peers[0] if code in WITH_PEER else -1
        channel = (code, peer) if code in NOT_COLLECTIVE else _COLLECTIVES
        match = self._matches.get(channel, 0)
        self._matches[channel] = match + 1
        now = self._clock()
        self._events.extend((AFTER, 0, op, -1, 0, -1, 0, 0.0, now) for op in after)
        op = self._operations
        self._operations = op + 1
        self._events.append((POST, code, op, peer, priority, match, bytes, 0.0, now))
        return op

    def wait(self, op: int) -> None:
        """Record that this node waits for operation `op`."""
        if op < self._operations:
            self._events.append((WAIT, 0, op, -1, 0, -1, 0, 0.0, self._clock()))

    def wait_before(self, kind: str, peers: Sequence[int], from_last: int) -> None:
        """Record that this node waits for an operation from before the sample.

        In a replay that repeats the sample, this is the operation of this kind with this peer that the sample posts
        as the last but `from_last`. `to_arrays` leaves out the wait if the sample posts fewer.
        """
        code = _KIND_CODE[kind]
        peer = peers[0] if code in WITH_PEER else -1
        self._events.append((WAIT_BEFORE, code, -1, peer, 0, from_last, 0, 0.0, self._clock()))

    def mark(self, what: str) -> None:
        """Record the end of a "step" or a "round"."""
        self._events.append((MARK, _MARK_CODE[what], -1, -1, 0, -1, 0, 0.0, self._clock()))

    def to_arrays(self, count: int | None = None) -> NDArray[Any]:
        """The first `count` events, by default all so far, as an array [events] of dtype `EVENT`."""
        return _resolved(np.array(self._events[:count], dtype=EVENT))


def set_work(events: NDArray[Any], seconds: Mapping[int, float]) -> None:
    """Write the `seconds` of work, by operation, into `events` of one node."""
    for post in np.flatnonzero((events["code"] == POST) & (events["kind"] == WORK)):
        events["seconds"][post] = seconds.get(int(events["op"][post]), 0.0)


class EarlierOperations:
    """Operations from before a sample, for which the sample may wait. Their numbers are below -1."""

    def __init__(self) -> None:
        self._kinds: list[tuple[str, tuple[int, ...]]] = []
        self._under_way: dict[int, tuple[str, tuple[int, ...], int]] = {}

    def post(self, kind: str, peers: Sequence[int]) -> int:
        """Note the start of an operation before the sample; returns its number."""
        self._kinds.append((kind, tuple(peers)))
        return -1 - len(self._kinds)

    def close(self) -> None:
        """Begin the sample: count the operations alike from the last one back."""
        later: Counter[tuple[str, tuple[int, ...]]] = Counter()
        for place in reversed(range(len(self._kinds))):
            alike = self._kinds[place]
            self._under_way[-2 - place] = (*alike, later[alike])
            later[alike] += 1
        self._kinds.clear()

    def __contains__(self, op: int) -> bool:
        """Whether the sample may wait for operation `op`, and has not done so yet."""
        return op in self._under_way

    def take(self, op: int) -> tuple[str, tuple[int, ...], int]:
        """The arguments of `TraceBuilder.wait_before` for operation `op`, once."""
        return self._under_way.pop(op)


def _resolved(events: NDArray[Any]) -> NDArray[Any]:
    """`events` with the operations that a `wait_before` waits for."""
    waits = np.flatnonzero(events["code"] == WAIT_BEFORE)
    if not len(waits):
        return events
    posts = events[events["code"] == POST]
    kept = np.ones(len(events), dtype=bool)
    for wait in waits:
        alike = posts["op"][(posts["kind"] == events["kind"][wait]) & (posts["peer"] == events["peer"][wait])]
        place = len(alike) - 1 - int(events["match"][wait])
        kept[wait] = place >= 0
        events["op"][wait] = alike[place] if place >= 0 else -1
    events["kind"][waits], events["peer"][waits], events["match"][waits] = 0, -1, -1
    return events[kept]


def merge(nodes: Sequence[NDArray[Any]], *, world_size: int | None = None, **meta: Any) -> Trace:
    """One trace from the `to_arrays()` of every node, in rank order; `meta` are fields of `TraceMeta`.

    world_size: number of nodes of the run, if `nodes` are the first ones and the others repeat them (`Trace`).

    Raises:
        ValueError: if the events of the nodes do not fit together; see `problem`.
    """
    start = min((float(events["at"][0]) for events in nodes if len(events)), default=0.0)
    since = [events.copy() for events in nodes]
    for events in since:
        events["at"] -= start
    trace = Trace(nodes=tuple(since), meta=TraceMeta(nodes=world_size or len(nodes), **meta))
    found = problem(trace)
    if found:
        raise ValueError(found)
    return trace


class Buffer(Protocol):
    """What a message carries: a tensor."""

    @property
    def nbytes(self) -> int: ...


Turn: TypeAlias = tuple[Mapping[int, Buffer], Mapping[int, Buffer]]
"""Buffers to send and buffers to receive, by peer."""


AnyBuffer = TypeVar("AnyBuffer", bound=Buffer)


def not_empty(buffers: Mapping[int, AnyBuffer]) -> dict[int, AnyBuffer]:
    """The `buffers` that are not empty, by rising peer."""
    return {peer: buffer for peer, buffer in sorted(buffers.items()) if buffer.nbytes}


class PostMessage(Protocol):
    """Records that a buffer starts to or from a peer, after other operations; returns its number."""

    def __call__(self, peer: int, buffer: Any, after: Sequence[int] = ()) -> int: ...


def post_turns(
    turns: Sequence[Turn], post_receive: PostMessage, post_send: PostMessage, *, both: bool = False
) -> list[int]:
    """Record an exchange: the messages of a turn leave after those of the turn before. Returns all numbers.

    both: a node also begins to receive after the turn before.
    """
    numbers: list[int] = []
    before: list[int] = []
    for leaving, arriving in turns:
        own = [post_receive(peer, buffer, before if both else ()) for peer, buffer in arriving.items()]
        own += [post_send(peer, buffer, before) for peer, buffer in leaving.items()]
        before = own or before
        numbers += own
    return numbers
