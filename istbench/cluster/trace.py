"""The trace of a run: what each node computed, sent and waited for in some sampled rounds."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from istbench.config.numbers import Count, Nodes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TRACE_VERSION = 1

# Codes of events, operations and marks, as saved. Only ever append to these.
EVENTS = ("compute", "post", "wait", "mark", "after")
KINDS = ("all_reduce", "send", "receive", "all_gather", "broadcast", "barrier", "work", "reduce_scatter")
MARKS = ("step", "round")
COMPUTE, POST, WAIT, MARK, AFTER = range(5)
ALL_REDUCE, SEND, RECEIVE, ALL_GATHER, BROADCAST, BARRIER, WORK, REDUCE_SCATTER = range(8)
STEP, ROUND = range(2)

_KIND_CODE = {name: code for code, name in enumerate(KINDS)}
_MARK_CODE = {name: code for code, name in enumerate(MARKS)}
_WITH_PEER = (SEND, RECEIVE, BROADCAST)
_OF_ONE_NODE_OR_TWO = (SEND, RECEIVE, WORK)

EVENT = np.dtype(
    [
        ("code", "<u1"),  # index into EVENTS
        ("kind", "<u1"),  # of a post: index into KINDS; of a mark: index into MARKS
        ("op", "<i4"),  # of a post, wait, after: the operation, numbered from 0 on this node
        ("peer", "<i4"),  # of a send, receive: the other rank; of a broadcast: the root; else -1
        ("priority", "<i4"),  # of a post: lower is more urgent
        ("match", "<i4"),  # of a post: collectives, transfers from one node to another, work: each from 0
        ("bytes", "<i8"),  # of a post
        ("seconds", "<f8"),  # of a compute, or of work
        ("at", "<f8"),  # when it was recorded: seconds since the first event of any node; of a wait, its end
    ]
)


Gflops = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_MOST_SECONDS, _MOST_BYTES = 1e9, 2**53
# Beyond these, what a trace holds is not what the machine does by itself.
_OTHERS_SHARE, _STEADY_RANGE = 0.15, 1.3


class TraceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the run that a trace is of.

    Attributes:
        batch_size: samples of one node's minibatch.
        gflops: of one node where the trace was recorded, or by the shape of a matrix product; medians of some
            measurements beside the recording. gflops_range: the largest of these over the smallest.
        cores, others_cores: of the machine it was recorded on, and how many of them others used meanwhile, mean.
        window: messages to a node that the method's priority queue lets go and can no longer reorder.
        transport: whether its messages went through the fabric's transport, beside the process group.
    """

    nodes: Nodes
    batch_size: Count | None = None
    gflops: Gflops | dict[str, Gflops] | None = None
    gflops_range: Annotated[float, msgspec.Meta(ge=1, le=1e9)] | None = None
    cores: Count | None = None
    others_cores: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    window: Count | None = None
    transport: bool = False

    @property
    def doubt(self) -> str:
        """Why its seconds may not be the machine's own, in a few words; empty where nothing speaks against them."""
        if self.cores and self.others_cores and self.others_cores > _OTHERS_SHARE * self.cores:
            return f"others used {self.others_cores:.1f} of {self.cores} cores while it was recorded"
        if self.gflops_range and self.gflops_range > _STEADY_RANGE:
            return f"the machine's speed changed by {self.gflops_range:.1f} times while it was recorded"
        return ""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Events of some sampled rounds of one run, per node, in the node's own order.

    Attributes:
        nodes: per rank, events as an array [events] of dtype `EVENT`.
        meta: figures of the run; see `gflops` for the one replay reads.
        version: of this format.
    """

    nodes: tuple[NDArray[Any], ...]
    meta: TraceMeta
    version: int = TRACE_VERSION

    @property
    def world_size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @cached_property
    def steps(self) -> int:
        """Local steps in the sample."""
        return self._count(STEP)

    @cached_property
    def rounds(self) -> int:
        """Rounds in the sample. A trace that marks no rounds has one a step."""
        return self._count(ROUND) or self.steps

    @property
    def gflops(self) -> float | None:
        """Effective GFLOP/s of one node where this was recorded; None where it was not calibrated.

        Of several shapes this is the speed of doing each product once.
        """
        figures = self.meta.gflops
        return speed_of_all(figures) if isinstance(figures, dict) else figures

    def _count(self, mark: int) -> int:
        events = self.nodes[0]
        return int(np.count_nonzero((events["code"] == MARK) & (events["kind"] == mark)))


def speed_of_all(gflops: Mapping[str, float]) -> float | None:
    """GFLOP/s of doing each matrix product once whose speed is given by its shape, such as `128x4096x512`.

    Shapes that are not such text count alike. None where there are none.
    """
    if not gflops:
        return None
    work = {shape: _operations(shape) for shape in gflops}
    return math.fsum(work.values()) / math.fsum(work[shape] / speed for shape, speed in gflops.items())


def _operations(shape: str) -> float:
    sizes = shape.split("x")
    whole = all(size.isascii() and size.isdigit() and len(size) < 16 for size in sizes)
    return float(math.prod(max(1, int(size)) for size in sizes)) if whole and len(sizes) <= 3 else 1.0


class TraceBuilder:
    """Records the events of one node; cheap enough for a training loop (a list append an event).

    A wait for an operation posted before recording began (`clear`) is left out, as that operation is.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.clear()

    def __len__(self) -> int:
        return len(self._events)

    def clear(self) -> None:
        """Forget everything recorded and number operations from 0."""
        self._events: list[tuple[int, int, int, int, int, int, int, float, float]] = []
        self._operations = 0
        self._matches: dict[tuple[int, int], int] = {}

    def compute(self, seconds: float) -> None:
        """`seconds` were computed since the last event."""
        self._events.append((COMPUTE, 0, -1, -1, 0, -1, 0, seconds, self._clock()))

    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int:
        """An operation starts here, without waiting for it; returns its number, to `wait` for.

        Args:
            kind: one of `KINDS`. Collectives must be posted in the same order on every node. "work" is what a
                thread of the node computes beside its training thread, one after another, by priority.
            bytes: size of the tensor; for an all-gather, of this node's own part, for a reduce-scatter of all.
            peers: of a send the receiver, of a receive the sender, of a broadcast the root; else empty.
            priority: of a send or work, lower is more urgent.
            after: operations of this node that must be done before a send, receive or work starts by itself, such
                as a parameter server's update after the pushes it sums, and its reply after that.
        """
        code = _KIND_CODE[kind]
        peer = peers[0] if code in _WITH_PEER else -1
        channel = (code, peer) if code in _OF_ONE_NODE_OR_TWO else (ALL_REDUCE, -1)
        match = self._matches.get(channel, 0)
        self._matches[channel] = match + 1
        now = self._clock()
        self._events.extend((AFTER, 0, op, -1, 0, -1, 0, 0.0, now) for op in after)
        op = self._operations
        self._operations = op + 1
        self._events.append((POST, code, op, peer, priority, match, bytes, 0.0, now))
        return op

    def wait(self, op: int) -> None:
        """This node goes on only when operation `op` is done."""
        if op < self._operations:
            self._events.append((WAIT, 0, op, -1, 0, -1, 0, 0.0, self._clock()))

    def mark(self, what: str) -> None:
        """A "step" or a "round" ended here."""
        self._events.append((MARK, _MARK_CODE[what], -1, -1, 0, -1, 0, 0.0, self._clock()))

    def to_arrays(self) -> NDArray[Any]:
        """The events so far, as an array [events] of dtype `EVENT`."""
        return np.array(self._events, dtype=EVENT)


def merge(nodes: Sequence[NDArray[Any]], **meta: Any) -> Trace:
    """One trace from every node's `to_arrays()`, in rank order; `meta` are fields of `TraceMeta`.

    Raises:
        ValueError: where the nodes' events do not fit together; see `problem`.
    """
    start = min((float(events["at"][0]) for events in nodes if len(events)), default=0.0)
    since = [events.copy() for events in nodes]
    for events in since:
        events["at"] -= start
    trace = Trace(nodes=tuple(since), meta=TraceMeta(nodes=len(nodes), **meta))
    found = problem(trace)
    if found:
        raise ValueError(found)
    return trace


def problem(trace: Trace) -> str | None:
    """What keeps `trace` from being replayed, in a few words; None where nothing does."""
    if not trace.nodes:
        return "no nodes"
    first: NDArray[Any] | None = None
    order: NDArray[Any] | None = None
    for rank, events in enumerate(trace.nodes):
        found = _problem_of_node(events, trace.world_size, rank)
        if found:
            return f"node {rank}: {found}"
        marks = events["kind"][events["code"] == MARK]
        posts = events[events["code"] == POST]
        collectives = posts[~np.isin(posts["kind"], _OF_ONE_NODE_OR_TWO)][["kind", "peer", "match", "bytes"]]
        # The parts of an all-gather may differ.
        collectives["bytes"][collectives["kind"] == ALL_GATHER] = 0
        if first is None or order is None:
            first, order = marks, collectives
        if not np.array_equal(first, marks):
            return f"node {rank} has other steps and rounds than node 0"
        if not np.array_equal(order, collectives):
            return f"node {rank} has other collectives than node 0"
    return _unmatched_transfer(trace)


def _problem_of_node(events: NDArray[Any], world_size: int, rank: int) -> str | None:
    if events.dtype != EVENT or events.ndim != 1:
        return "not an array of events"
    if np.any(events["code"] >= len(EVENTS)):
        return f"unknown event {int(events['code'].max())}"
    posts = events[events["code"] == POST]
    if np.any(posts["kind"] >= len(KINDS)):
        return f"unknown operation {int(posts['kind'].max())}"
    marks = events["kind"][events["code"] == MARK]
    if not len(marks) or np.any(marks >= len(MARKS)):
        return "no step or round ends in it" if not len(marks) else f"unknown mark {int(marks.max())}"
    if not np.array_equal(posts["op"], np.arange(len(posts))):
        return "operations are not numbered from 0"
    uses = (events["code"] == WAIT) | (events["code"] == AFTER)
    posted = np.cumsum(events["code"] == POST)
    if np.any(events["op"][uses] < 0) or np.any(events["op"][uses] >= posted[uses]):
        return "it waits for an operation that was not posted"
    peers = posts["peer"][np.isin(posts["kind"], _WITH_PEER)]
    if np.any(peers < 0) or np.any(peers >= world_size):
        return f"a peer outside the {world_size} nodes"
    if np.any(posts["peer"][(posts["kind"] == SEND) | (posts["kind"] == RECEIVE)] == rank):
        return "a transfer to itself"
    # Comparisons with NaN are false.
    seconds, sizes = events["seconds"], posts["bytes"]
    if not np.all((seconds >= 0) & (seconds <= _MOST_SECONDS)) or np.any((sizes < 0) | (sizes > _MOST_BYTES)):
        return "negative or unreadable seconds or bytes"
    if not np.all(np.abs(events["at"]) <= _MOST_SECONDS):
        return "events at no time"
    after = np.flatnonzero(events["code"] == AFTER)
    codes = np.append(events["code"], np.uint8(MARK))[after + 1]
    kinds = np.append(events["kind"], np.uint8(0))[after + 1]
    if np.any((codes != AFTER) & ~((codes == POST) & np.isin(kinds, _OF_ONE_NODE_OR_TWO))):
        return "only a send, a receive or work can come after an operation"
    return None


def _unmatched_transfer(trace: Trace) -> str | None:
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, events in enumerate(trace.nodes):
        posts = events[events["code"] == POST]
        for kind, peer, match, size in posts[["kind", "peer", "match", "bytes"]].tolist():
            if kind == SEND:
                sent.setdefault((rank, peer), []).append((match, size))
            elif kind == RECEIVE:
                received.setdefault((peer, rank), []).append((match, size))
    for source, target in sorted({*sent, *received}):
        between = f"from node {source} to node {target}"
        given, taken = sent.get((source, target), []), received.get((source, target), [])
        if len(given) != len(taken):
            return f"{len(given)} sends {between}, but {len(taken)} receives"
        if any(match != i for transfers in (given, taken) for i, (match, _) in enumerate(transfers)):
            return f"transfers {between} are not numbered from 0"
        if given != taken:
            return f"sends {between} and their receives differ in size"
    return None


def round_ends(kinds: NDArray[np.uint8]) -> Ints:
    """Which of a sample's marks, of these `kinds`, ends each round [rounds]; each step where none ends a round.

    A round may be marked inside the step that ends it: then that step's mark, which follows, still belongs to it.
    """
    rounds = np.flatnonzero(kinds == ROUND)
    if not len(rounds):
        return np.arange(len(kinds))
    inside = rounds[-1] + 1 < len(kinds)
    return rounds + 1 if inside else rounds
