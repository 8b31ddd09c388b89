"""The plan of a cell before anything runs: its memory, bytes and seconds on a cluster."""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.base.sign_change import sign_change
from istbench.cluster.collective import Backend
from istbench.cluster.collectives import COLLECTIVES, bytes_on_wire
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.trace import POST, SEND, Trace, round_ends

GIB = 2**30
PLANNED_ROUNDS = 3
"""Rounds to trace. Each round waits for the one before, so the last one lasts as long as all later rounds."""

MOST_MESSAGES = 20_000_000  # half a minute of simulation


@dataclass(frozen=True, kw_only=True)
class NodeMemory:
    """Bytes of a node while it trains.

    Activations, the round buffers of an exchange and the optimizer's scratch space reuse the same memory in turn.

    Attributes:
        activations: of a local step, with its minibatch and without gradients; None if unknown.
        least_activations: a lower bound of the activations.
        buffers: of the exchange, held all the time. round_buffers: held during an exchange.
        optimizer_scratch: held during an optimizer step. data: computed and held by every process.
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
        """Whether all parts are known; otherwise the total is a lower bound."""
        return self.activations is not None

    @property
    def parts(self) -> dict[str, int | None]:
        """Bytes by part, which add up to the total. A part that reuses memory counts only its additional bytes."""
        first = self._in_turn
        exchange = max(0, self.round_buffers - first)
        scratch = max(0, self.optimizer_scratch - max(first, self.round_buffers))
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer_state": self.optimizer_state,
            "activations": self.activations,
            "exchange_buffers": self.buffers + exchange,
            **({"optimizer_scratch": scratch} if scratch else {}),
            **({"data": self.data} if self.data else {}),
        }

    @property
    def reused(self) -> int:
        """Bytes of exchange buffers in the memory of activations."""
        return min(self._in_turn, self.round_buffers)

    @property
    def total(self) -> int:
        """Bytes at the fullest moment."""
        always = self.parameters + self.gradients + self.optimizer_state + self.buffers + self.data
        return always + max(self._in_turn, self.round_buffers, self.optimizer_scratch)

    def in_words(self) -> str:
        """Its parts in GiB, in one line."""
        known = {name.replace("_", " "): size for name, size in self.parts.items() if size}
        return ", ".join(f"{name} {size / GIB:,.2f}" for name, size in known.items()) + " GiB"

    @property
    def _in_turn(self) -> int:
        return self.least_activations if self.activations is None else self.activations


@dataclass(frozen=True, kw_only=True)
class CellPlan:
    """Memory, bytes and seconds of a cell on a cluster.

    Attributes:
        workload, method: with the options that differ from their defaults. model_parameters: of the full model.
        batch_size: of a node; None for a recorded script, which has its own.
        memory: of the busiest node; None if the method gives no footprint.
        sent: bytes that the busiest node sends in a round. seconds: of a round. None if unknown.
        compute_seconds: the seconds of a round in which the slowest node computes. round_steps: local steps in it.
        width: the option of `largest_width`, empty if the workload has none. largest_width and fewest_nodes are
            None if nothing fits or the answer is unknown.
        assumed: assumptions, one line each.
    """

    workload: str
    method: str
    nodes: int
    batch_size: int | None
    cluster: ClusterProfile
    model_parameters: int
    memory: NodeMemory | None
    sent: int | None
    seconds: float | None
    compute_seconds: float | None
    round_steps: int
    width: str = ""
    largest_width: int | None = None
    fewest_nodes: int | None = None
    assumed: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether a node can hold its part; None if that is unknown."""
        return fits(self.memory, self.cluster.memory_bytes)

    def as_json(self) -> dict[str, Any]:
        """The object that `istbench plan --json` prints."""
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
            "memory_limit_bytes_per_node": self.cluster.memory_bytes,
            "spare_bytes_per_node": None if memory is None else self.cluster.memory_bytes - memory.total,
            "exchange_bytes_per_node_per_round": self.sent,
            "seconds_per_round": self.seconds,
            "compute_seconds_per_round": self.compute_seconds,
            "local_steps_per_round": self.round_steps,
            "width_option": self.width or None,
            "largest_width": self.largest_width,
            "fewest_nodes": self.fewest_nodes,
            "assumed": list(self.assumed),
        }


def fits(memory: NodeMemory | None, limit: int) -> bool | None:
    """Whether `memory` is at most `limit` bytes; None where an incomplete `memory` may be too large."""
    if memory is None:
        return None
    if memory.total > limit:
        return False
    return True if memory.complete else None


def bytes_sent(events: NDArray[Any], world_size: int, rank: int = 0, backend: Backend = "gloo") -> int:
    """Bytes that node `rank` sends in these `events`, counted as the fabric counts them with this `backend`."""
    posts = events[events["code"] == POST]
    total = int(posts["bytes"][posts["kind"] == SEND].sum())
    for code, collective in COLLECTIVES.items():
        own = posts[posts["kind"] == code]
        for root, size in own[["peer", "bytes"]].tolist():
            total += bytes_on_wire(collective.name, size, world_size, (rank - root) % world_size, backend)[0]
    return total


def most_sent(nodes: Iterable[NDArray[Any]], world_size: int, backend: Backend) -> int:
    """`bytes_sent` of the node that sends most; `nodes` are the events of each, by rank."""
    return max(bytes_sent(own, world_size, rank, backend) for rank, own in enumerate(nodes))


def round_seconds(trace: Trace, profile: ClusterProfile) -> float | None:
    """Seconds of the last round of `trace` on `profile`; None if the simulation would take minutes.

    trace: as `in_turns.seen_on` gives it for `profile`.

    Raises:
        UserError: if the rounds do not replay.
    """
    from istbench.cluster.simulator import replay

    if _messages(trace.nodes, trace.world_size, profile.collectives) > MOST_MESSAGES:
        return None
    found = replay(trace, profile, compute_scale=1.0)
    ends = found.finish_s[:, round_ends(found.mark_kind)].max(axis=0)
    return float(ends[-1] - (ends[-2] if len(ends) > 1 else 0.0))


def _messages(nodes: Sequence[NDArray[Any]], world_size: int, backend: Backend) -> int:
    """Messages that the simulation carries, and connections that it keeps."""
    posts = np.concatenate([events[events["code"] == POST] for events in nodes])
    count = len(nodes) * world_size + int(np.count_nonzero(~np.isin(posts["kind"], list(COLLECTIVES))))
    for kind, collective in COLLECTIVES.items():
        sizes, each = np.unique(posts["bytes"][posts["kind"] == kind], return_counts=True)
        for size, own in zip(sizes.tolist(), each.tolist(), strict=True):
            schedule = collective.between(world_size, backend, collective.chunks(size, world_size, backend))
            count += own * sum(map(len, schedule)) // len(schedule)
    return count


def largest(spare: Callable[[int], float], start: int, most: int) -> int | None:
    """The largest number up to `most` with a `spare` amount of at least 0, a whole one; None if there is none.

    Below a number with enough, all must have enough. The search spreads from `start`.
    """
    spare = functools.cache(spare)
    low, high = 0, min(start, most)
    while spare(high) >= 0:
        if high == most:
            return most
        low, high = high, min(2 * high, most)

    def above(number: float) -> float:
        return spare(int(number)) + 1 if number else math.inf

    def between(low: float, high: float, share: float) -> int:
        return int(min(max(low + share * (high - low), low + 1), high - 1))

    return int(sign_change(above, low, high, near=1, between=between)[0]) or None


def fewest(suits: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 1 to `most` that `suits`; None if no power of two, nor `most`, does.

    `suits` must be true for all numbers above the first power for which it is true.
    """
    low, high = 0, 1
    while not suits(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    return low + 1 + bisect_left(range(low + 1, high), True, key=suits)
