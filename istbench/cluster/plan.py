"""A plan: what a cell would need and take on a cluster, before anything runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.on_wire import bytes_on_wire
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.trace import KINDS, POST, SEND, merge, round_ends

GIB = 2**30
PLANNED_ROUNDS = 3
"""A round waits for the one before: the last of some is as long as all that follow."""

_MOST_MESSAGES = 20_000_000  # half a minute of simulation


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a node while it trains.

    Activations, an exchange's round buffers and an optimizer's scratch take turns: the memory of one is the next's.

    Attributes:
        activations: what a local step makes beside gradients, its minibatch included; None where not known.
        least_activations: what these are at least.
        buffers: of the exchange, always there. round_buffers: for the time of an exchange.
        optimizer_scratch: for the time of an optimizer's step. data: what every process computes and holds.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int | None
    least_activations: int = 0
    buffers: int = 0
    round_buffers: int = 0
    optimizer_scratch: int = 0
    data: int = 0

    @property
    def complete(self) -> bool:
        """Whether all parts are known; without, the total is the least there is."""
        return self.activations is not None

    @property
    def parts(self) -> dict[str, int | None]:
        """Bytes by part, so that they add up: of what takes turns, each has what it needs beyond those before."""
        first = self._in_turn
        exchange = max(0, self.round_buffers - first)
        scratch = max(0, self.optimizer_scratch - max(first, self.round_buffers))
        parts = {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer_state": self.optimizer_state,
            "activations": self.activations,
            "exchange_buffers": self.buffers + exchange,
            **({"optimizer_scratch": scratch} if scratch else {}),
            **({"data": self.data} if self.data else {}),
        }
        return parts

    @property
    def reused(self) -> int:
        """Bytes of an exchange's buffers that take the place of activations."""
        return min(self._in_turn, self.round_buffers)

    @property
    def total(self) -> int:
        """Bytes at the fullest moment."""
        always = self.parameters + self.gradients + self.optimizer_state + self.buffers + self.data
        return always + max(self._in_turn, self.round_buffers, self.optimizer_scratch)

    def in_words(self) -> str:
        """Its parts, GiB, in a line."""
        known = {name.replace("_", " "): size for name, size in self.parts.items() if size}
        return ", ".join(f"{name} {size / GIB:,.2f}" for name, size in known.items()) + " GiB"

    @property
    def _in_turn(self) -> int:
        return self.least_activations if self.activations is None else self.activations


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a cell would need and take.

    Attributes:
        workload, method: with the options that are not their defaults. model_parameters: of the full model.
        memory: of the busiest node; None where the method does not say.
        sent: bytes that the busiest node sends a round; seconds: of a round; None where not known.
        compute_seconds: of them, what a node computes. round_steps: local steps of a round.
        width: the option that `largest_width` is about, empty where there is none. Both answers are None where
            nothing fits, or it is not known.
        assumed: what was taken for granted, a line each.
    """

    workload: str
    method: str
    nodes: int
    batch_size: int
    cluster: ClusterProfile
    model_parameters: int
    memory: Memory | None
    sent: int | None
    seconds: float | None
    compute_seconds: float | None
    round_steps: int
    width: str = ""
    largest_width: int | None = None
    fewest_nodes: int | None = None
    assumed: tuple[str, ...] = ()

    @property
    def limit(self) -> int:
        """Bytes that a node of the cluster has."""
        return int(self.cluster.memory_gib * GIB)

    @property
    def fits(self) -> bool | None:
        """Whether a node holds its part; None where that is not known."""
        return fits(self.memory, self.limit)

    def as_json(self) -> dict[str, Any]:
        """What `istbench plan --json` prints."""
        memory = self.memory
        return {
            "workload": self.workload,
            "method": self.method,
            "nodes": self.nodes,
            "cluster": self.cluster.name,
            "batch_size": self.batch_size,
            "model_parameters": self.model_parameters,
            "fits": self.fits,
            "memory_bytes_per_node": None if memory is None else {**memory.parts, "total": memory.total},
            "memory_complete": memory is not None and memory.complete,
            "memory_limit_bytes_per_node": self.limit,
            "spare_bytes_per_node": None if memory is None else self.limit - memory.total,
            "exchange_bytes_per_node_per_round": self.sent,
            "seconds_per_round": self.seconds,
            "compute_seconds_per_round": self.compute_seconds,
            "local_steps_per_round": self.round_steps,
            "width_option": self.width or None,
            "largest_width": self.largest_width,
            "fewest_nodes": self.fewest_nodes,
            "assumed": list(self.assumed),
        }


def fits(memory: Memory | None, limit: int) -> bool | None:
    """Whether `memory` is at most `limit` bytes. One that is not complete may be too large, never small enough."""
    if memory is None:
        return None
    if memory.total > limit:
        return False
    return True if memory.complete else None


def bytes_sent(events: NDArray[Any], world_size: int, rank: int = 0) -> int:
    """Bytes that node `rank` with these `events` puts on the network, counted as the fabric counts them."""
    posts = events[events["code"] == POST]
    total = int(posts["bytes"][posts["kind"] == SEND].sum())
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        own = posts[posts["kind"] == KINDS.index(kind)]
        for root, size in own[["peer", "bytes"]].tolist():
            total += bytes_on_wire(kind, size, world_size, (rank - root) % world_size)[0]
    return total


def round_seconds(nodes: Sequence[NDArray[Any]], profile: ClusterProfile, window: int | None) -> float | None:
    """Seconds of the last round in the events of `nodes`; None where the simulation would take minutes.

    If all nodes do the same and exchange on rings, two nodes stand for all. In lockstep a node's messages take the
    same time, whether its two neighbours are one node or two.

    Raises:
        UserError: where they cannot be replayed.
    """
    from istbench.cluster.simulator import replay

    alike = _alike_on_rings(nodes)
    if not alike and _messages(nodes) > _MOST_MESSAGES:
        return None
    trace = merge(nodes[:2] if alike else nodes, window=window)
    found = replay(trace, profile, compute_scale=1.0, ring=len(nodes))
    ends = found.finish_s[:, round_ends(found.mark_kind)].max(axis=0)
    return float(ends[-1] - (ends[-2] if len(ends) > 1 else 0.0))


def _alike_on_rings(nodes: Sequence[NDArray[Any]]) -> bool:
    from istbench.cluster.simulator.collectives import SCHEDULES, is_ring

    posts = nodes[0][nodes[0]["code"] == POST]
    kinds = np.unique(posts["kind"]).tolist()
    on_rings = all(kind in SCHEDULES and is_ring(SCHEDULES[kind](4)) for kind in kinds)
    return on_rings and all(np.array_equal(nodes[0], events) for events in nodes[1:])


def _messages(nodes: Sequence[NDArray[Any]]) -> int:
    """Messages that the simulation carries, and pairs of nodes that it keeps."""
    from istbench.cluster.simulator.collectives import SCHEDULES

    posts = np.concatenate([events["kind"][events["code"] == POST] for events in nodes])
    count = len(nodes) ** 2
    for kind, own in zip(*np.unique(posts, return_counts=True), strict=True):
        schedule = SCHEDULES[kind](len(nodes)) if kind in SCHEDULES else [[None]]
        count += int(own) * sum(map(len, schedule)) // len(schedule)
    return count


def largest(suits: Callable[[int], bool], start: int, most: int) -> int | None:
    """The largest number up to `most` that `suits`, where all below one that does do too; None where none does.

    The search spreads from `start`.
    """
    low, high = 0, min(start, most)
    while suits(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while not low and high > 1:
        middle = high // 2
        low, high = (middle, high) if suits(middle) else (0, middle)
    if not low:
        return None
    return _between(suits, low, high)


def fewest(suits: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 1 to `most` that `suits`, where all above the first power of two that does do too.

    None where no power of two, nor `most`, does.
    """
    low, high = 0, 1
    while not suits(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    return -_between(lambda number: suits(-number), -high, -low)


def _between(suits: Callable[[int], bool], low: int, high: int) -> int:
    """The last that suits, where `low` does and `high` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suits(middle) else (low, middle)
    return low
