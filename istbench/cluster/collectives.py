"""Collectives. An entry gives the name, the code in traces and the messages; byte counts follow from the messages.

Each node sends its messages of a collective in order. A message leaves when the message before it has left, the
messages that it needs have arrived, and its receiver has started the same collective. A node is done when it has
sent and received all of its messages.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveMessage:
    """A message that one node sends in a collective. Other nodes are named by their distance from it in ranks.

    Attributes:
        to: the receiver.
        after: the sender waits until its received messages count at least this much together.
        counts: the message counts this much at its receiver.
        part_of: the node whose tensor it carries.
        parts: it carries one of this many equal parts of that tensor; infinity for an empty message.
    """

    to: int
    after: int
    counts: int = 1
    part_of: int = 0
    parts: float = 1.0


# One row for each place, which is the rank counted from the root; or a single row for all nodes.
Schedule: TypeAlias = Sequence[Sequence[CollectiveMessage]]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A kind of collective.

    Attributes:
        name: as the fabric posts it. code: its number in saved traces; a new collective takes the next free one.
        schedule: its messages between this many nodes.
        rooted: it has a root. sizes_differ: nodes may post tensors of different sizes.
    """

    name: str
    code: int
    schedule: Callable[[int], Schedule]
    rooted: bool = False
    sizes_differ: bool = False


def _ring_all_reduce(nodes: int) -> Schedule:
    """One n-th of the tensor goes round the ring twice: once to be summed, once to be distributed (gloo, NCCL)."""
    return [[CollectiveMessage(to=1, after=step, parts=nodes) for step in range(2 * (nodes - 1))]]


def _ring_all_gather(nodes: int) -> Schedule:
    """Each node sends its own part to the next node, then every part that it receives."""
    return [[CollectiveMessage(to=1, after=step, part_of=-step) for step in range(nodes - 1)]]


def _ring_reduce_scatter(nodes: int) -> Schedule:
    """One n-th of the tensor goes round the ring once to be summed, as in NCCL: the first half of an all-reduce."""
    return [[CollectiveMessage(to=1, after=step, parts=nodes) for step in range(nodes - 1)]]


def _binomial_broadcast(nodes: int) -> Schedule:
    """In step k, each node that has the tensor sends it to the node 2^k ranks further, as in gloo."""
    return [
        [
            CollectiveMessage(to=1 << step, after=min(place, 1))
            for step in range(place.bit_length(), nodes.bit_length())
            if place + (1 << step) < nodes
        ]
        for place in range(nodes)
    ]


def _dissemination_barrier(nodes: int) -> Schedule:
    """In step k, each node tells the node 2^k ranks further that all nodes it knows of have arrived.

    A message of a later step may overtake one of an earlier step. The counts halve with each step, so all later
    messages together count less than one missing earlier message.
    """
    steps = (nodes - 1).bit_length()
    return [
        [
            CollectiveMessage(
                to=1 << step,
                after=2**steps - 2 ** (steps - step),
                counts=2 ** (steps - 1 - step),
                parts=math.inf,
            )
            for step in range(steps)
        ]
    ]


# Codes stand in saved traces: never change one. Codes 1, 2 and 6 are send, receive and work.
_ALL = (
    Collective(name="all_reduce", code=0, schedule=_ring_all_reduce),
    Collective(name="all_gather", code=3, schedule=_ring_all_gather, sizes_differ=True),
    Collective(name="broadcast", code=4, schedule=_binomial_broadcast, rooted=True),
    Collective(name="barrier", code=5, schedule=_dissemination_barrier),
    Collective(name="reduce_scatter", code=7, schedule=_ring_reduce_scatter),
)

COLLECTIVES = {collective.code: collective for collective in _ALL}
"""Every collective by its code."""

_BY_NAME = {collective.name: collective for collective in _ALL}
if not len(_ALL) == len(COLLECTIVES) == len(_BY_NAME):
    raise ValueError("two collectives have the same code or the same name")


def bytes_on_wire(name: str, size: int, world_size: int, place: int = 0) -> tuple[int, int]:
    """Bytes that one of `world_size` nodes sends and receives in the collective `name`.

    Args:
        size: as `TraceBuilder.post` takes it; the parts of an all-gather have one size.
        place: the node's rank, counted from the root of a broadcast.

    Raises:
        ValueError: for an unknown collective.
    """
    shares = _shares(name, world_size)
    sent, received, whole = shares[place % len(shares)]
    return size * sent // whole, size * received // whole


@lru_cache(maxsize=256)
def _shares(name: str, world_size: int) -> list[tuple[int, int, int]]:
    """Tensors that each place sends and receives: numerators, and their common denominator."""
    if name not in _BY_NAME:
        raise ValueError(f"no collective {name!r}; add it to istbench/cluster/collectives.py")
    rows = _BY_NAME[name].schedule(world_size)
    sent = [Counter(message.parts for message in row) for row in rows]
    received = [Counter[float]() for _ in rows]
    for place, row in enumerate(rows):
        for message in row:
            received[(place + message.to) % len(rows)][message.parts] += 1
    shares = []
    for out, into in zip(map(_tensors, sent), map(_tensors, received), strict=True):
        whole = math.lcm(out.denominator, into.denominator)
        shares.append((int(out * whole), int(into * whole), whole))
    return shares


def _tensors(parts: Counter[float]) -> Fraction:
    shares = (Fraction(count, int(part)) for part, count in parts.items() if part != math.inf)
    return sum(shares, Fraction(0))
