"""The trace of a run: the computing, sending and waiting of each node in some sampled rounds."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from istbench.base.options.numbers import Count, Duration, Natural, Nodes, Threads
from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.speed import Giga, Speed, StepWork

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_Value = TypeVar("_Value")

TRACE_VERSION = 1

# Codes of events and marks, as saved. Only append to these.
EVENTS = ("compute", "post", "wait", "mark", "after", "wait_before")
MARKS = ("step", "round")
# A wait_before waits for an operation of the sample before this one, where a replay repeats the sample.
COMPUTE, POST, WAIT, MARK, AFTER, WAIT_BEFORE = range(6)
STEP, ROUND = range(2)
# Codes of operations; `collectives` has the others.
SEND, RECEIVE, WORK = 1, 2, 6
NOT_COLLECTIVE = (SEND, RECEIVE, WORK)
WITH_PEER = (SEND, RECEIVE, *(code for code, collective in COLLECTIVES.items() if collective.rooted))


def _kinds() -> tuple[str, ...]:
    names = {code: collective.name for code, collective in COLLECTIVES.items()}
    names |= {SEND: "send", RECEIVE: "receive", WORK: "work"}
    if sorted(names) != list(range(len(NOT_COLLECTIVE) + len(COLLECTIVES))):
        raise ValueError(f"operations have the codes {sorted(names)}: one is free, or one stands twice")
    return tuple(names[code] for code in sorted(names))


KINDS = _kinds()
"""Names of operations by their code."""

EVENT = np.dtype(
    [
        ("code", "<u1"),  # index into EVENTS
        ("kind", "<u1"),  # of a post: index into KINDS; of a mark: index into MARKS
        ("op", "<i4"),  # but in computing and marks: the operation, numbered from 0 on this node
        ("peer", "<i4"),  # of a send, receive: the other rank; of a broadcast: the root; else -1
        ("priority", "<i4"),  # of a post: lower is more urgent
        ("match", "<i4"),  # of a post: collectives, transfers from one node to another, work: each from 0
        ("bytes", "<i8"),  # of a post
        ("seconds", "<f8"),  # of a compute, or of work
        ("at", "<f8"),  # time of recording: seconds since the first event of any node; of a wait, its end
    ]
)


MOST_EVENTS = 2**21
"""Of all nodes of a trace: three rounds of 16 nodes of P3 that exchange VGG-19 in slices of 50,000 parameters."""

# Beyond these limits, other programs on the machine changed the seconds in a trace.
_OTHERS_SHARE, _STEADY_RANGE = 0.15, 1.3


_Shape = Annotated[str, msgspec.Meta(max_length=100)]


class TraceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the traced run.

    Attributes:
        batch_size: samples of one node's minibatch.
        gflops: of one recording node, in total or by the shape of a matrix product; medians of measurements during
            the recording. gflops_range: the largest measurement over the smallest.
        memory_gb_per_s, gather_gb_per_s: of one recording node, as in `Speed`; medians of the same measurements.
            moments: all of these measurements.
        work: of a local step.
        threads: of a recording node. device: cpu or cuda.
        cores, others_cores: of the recording machine, and the mean number that other programs used meanwhile.
        window: messages to a node that the priority queue has released and can no longer reorder.
        transport: the messages went through the fabric's transport, beside the process group.
        warmup_steps: local steps at the start of the run, each of which exchanges as the last step of a round does.
            The sample is from later rounds; a replay adds these exchanges.
        warmup_state: exchanges more at the end of these steps, of the optimizer's state.
        stalled_s: seconds of stalls (`node.stalls`) in the sample.
        unlike_steps: local steps at the start of the run whose messages differ from those of the sample. A replay
            takes them for steps of the sample.
        last_bytes: of an all-reduce between the last step and the weights that are evaluated. A replay adds it to
            every evaluation.
    """

    nodes: Nodes
    batch_size: Count | None = None
    gflops: Giga | Annotated[dict[_Shape, Giga], msgspec.Meta(max_length=100)] | None = None
    gflops_range: Annotated[float, msgspec.Meta(ge=1, le=1e9)] | None = None
    memory_gb_per_s: Giga | None = None
    gather_gb_per_s: Giga | None = None
    moments: Annotated[tuple[Speed, ...], msgspec.Meta(max_length=1000)] = ()
    work: StepWork | None = None
    threads: Threads | None = None
    device: Literal["cpu", "cuda"] | None = None
    cores: Count | None = None
    others_cores: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    window: Count | None = None
    transport: bool = False
    warmup_steps: Natural = 0
    warmup_state: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    unlike_steps: Natural = 0
    last_bytes: Natural = 0
    stalled_s: Duration = 0.0

    @property
    def doubt(self) -> str:
        """A reason to doubt the seconds of the trace, in a few words; empty without a reason."""
        if self.cores and self.others_cores and self.others_cores > _OTHERS_SHARE * self.cores:
            return f"others used {self.others_cores:.1f} of {self.cores} cores while it was recorded"
        if self.gflops_range and self.gflops_range > _STEADY_RANGE:
            return f"the machine's speed changed by {self.gflops_range:.1f} times while it was recorded"
        if self.device == "cuda" and self.stalled_s:  # a processor's seconds are CPU time, without stalls
            return f"its recorded rounds have stalls of {self.stalled_s:.1f} s"
        return ""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Events of some sampled rounds of one run, by node, in each node's order.

    Attributes:
        nodes: by rank, events as an array [events] of dtype `EVENT`. If these are fewer than `world_size`, the
            other ranks repeat them: each rank does the same as the rank `len(nodes)` before it, with peers that
            many ranks further.
        meta: figures of the run. `gflops` is the speed that a replay uses.
        version: of this format.
    """

    nodes: tuple[NDArray[Any], ...]
    meta: TraceMeta
    version: int = TRACE_VERSION

    @property
    def world_size(self) -> int:
        """Number of nodes of the run, a multiple of `len(nodes)`."""
        return self.meta.nodes

    @cached_property
    def steps(self) -> int:
        """Local steps in the sample."""
        return self._count(STEP)

    @cached_property
    def rounds(self) -> int:
        """Rounds in the sample. In a trace without marks of rounds, each step is a round."""
        return self._count(ROUND) or self.steps

    @cached_property
    def round_steps(self) -> int:
        """Local steps in a round; 1 if the rounds of the sample differ."""
        return self.steps // self.rounds if self.steps % self.rounds == 0 else 1

    def warmup_exchanges(self, steps: Ints | int) -> Ints:
        """Exchanges of the warm-up, beside those of its rounds, up to each of these local steps."""
        warm = np.minimum(steps, self.meta.warmup_steps)
        state = self.meta.warmup_state * (np.asarray(steps) >= self.meta.warmup_steps)
        exchanges: Ints = warm - warm // self.round_steps + state
        return exchanges

    @cached_property
    def computing_s(self) -> float:
        """Recorded seconds of the training thread, as the mean over nodes."""
        spent = [float(events["seconds"][events["code"] == COMPUTE].sum()) for events in self.nodes]
        return math.fsum(spent) / len(spent)

    @cached_property
    def has_work(self) -> bool:
        """Whether threads beside training worked."""
        return any(
            bool(((events["code"] == POST) & (events["kind"] == WORK) & (events["seconds"] > 0)).any())
            for events in self.nodes
        )

    def derived(self, name: str, given: object, make: Callable[[], _Value]) -> _Value:
        """The value `name` that `make` makes of this trace and `given`, kept until `given` is another."""
        known = self._derived.get(name)
        if known is None or known[0] != given:
            known = self._derived[name] = given, make()
        value: _Value = known[1]
        return value

    @cached_property
    def _derived(self) -> dict[str, tuple[object, Any]]:
        return {}

    @cached_property
    def gflops(self) -> float | None:
        """Effective GFLOP/s of one recording node; None without a calibration.

        For several shapes, this is the speed of computing each product once.
        """
        figures = self.meta.gflops
        return speed_of_all(figures) if isinstance(figures, dict) else figures

    def _count(self, mark: int) -> int:
        events = self.nodes[0]
        return int(np.count_nonzero((events["code"] == MARK) & (events["kind"] == mark)))


def speed_of_all(gflops: Mapping[str, float]) -> float | None:
    """GFLOP/s of computing each matrix product once, from speeds by shape, such as `128x4096x512`.

    Shapes in another form have equal weight. None without shapes.
    """
    if not gflops:
        return None
    work = {shape: _operations(shape) for shape in gflops}
    return math.fsum(work.values()) / math.fsum(work[shape] / speed for shape, speed in gflops.items())


def _operations(shape: str) -> float:
    sizes = shape.split("x")
    whole = all(size.isascii() and size.isdigit() and len(size) < 16 for size in sizes)
    return float(math.prod(max(1, int(size)) for size in sizes)) if whole and len(sizes) <= 3 else 1.0


def round_ends(kinds: NDArray[np.uint8]) -> Ints:
    """Indices of the marks that end each round [rounds], among the marks `kinds` of a sample.

    Without marks of rounds, each step ends a round. A method may mark a round inside its last step. Then the mark
    of that step follows and belongs to the round.
    """
    rounds = np.flatnonzero(kinds == ROUND)
    if not len(rounds):
        return np.arange(len(kinds))
    inside = rounds[-1] + 1 < len(kinds)
    return rounds + 1 if inside else rounds


def segment(trace: Trace, first: int, rounds: int) -> Trace:
    """`rounds` rounds of `trace` from round number `first` on; all operations before them are done."""
    return dataclasses.replace(trace, nodes=tuple(_segment_of(events, first, rounds) for events in trace.nodes))


def _segment_of(events: NDArray[Any], first: int, rounds: int) -> NDArray[Any]:
    marks = np.flatnonzero(events["code"] == MARK)
    ends = marks[round_ends(events["kind"][marks])] + 1
    own: NDArray[Any] = events[ends[first - 1] if first else 0 : ends[first + rounds - 1]].copy()
    posted = own["op"][own["code"] == POST]
    before = int(posted[0]) if len(posted) else np.iinfo(np.int32).max
    waits = np.isin(own["code"], (WAIT, AFTER))
    own = own[~((own["code"] == WAIT_BEFORE) | (waits & (own["op"] < before)))]
    numbered = ~np.isin(own["code"], (COMPUTE, MARK))
    own["op"][numbered] -= before
    return own


def without_core(trace: Trace) -> float:
    """Share of the compute seconds in which a node had no core, in the round of median share.

    An evaluation also takes such seconds, but few rounds have one. A compute span that ends in a wait tells
    nothing: its wall time includes waiting.
    """
    shares = []
    for events in trace.nodes:
        at, code = np.maximum.accumulate(events["at"]), events["code"]
        told = code == COMPUTE
        told[:-1] &= ~np.isin(code[1:], (WAIT, WAIT_BEFORE))
        told[0] = False  # the recording begins inside it
        passed = np.append(0.0, np.diff(at)) * told
        busy = np.minimum(events["seconds"], passed) * told
        marks = np.flatnonzero(code == MARK)
        starts = np.append(0, marks[round_ends(events["kind"][marks])][:-1] + 1)
        all_passed, all_busy = np.add.reduceat(passed, starts), np.add.reduceat(busy, starts)
        shares += [1 - b / p for b, p in zip(all_busy.tolist(), all_passed.tolist(), strict=True) if p > 0]
    return float(np.median(shares)) if shares else 0.0
