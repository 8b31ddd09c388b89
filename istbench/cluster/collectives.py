"""The table of collectives. Byte counts follow from the messages of an entry.

An installed package adds its own by entry points of the group `istbench.collectives`, each a `Collective`.
"""

import math
from collections import Counter
from fractions import Fraction
from functools import lru_cache

from istbench.base.entry_points import with_packages
from istbench.cluster.collective import Backend, Collective, CollectiveMessage, Schedule


def _ring_all_reduce(nodes: int) -> Schedule:
    """One n-th of the tensor goes round the ring twice: once to be summed, once to be distributed (gloo, NCCL)."""
    return [[CollectiveMessage(to=1, after=step, parts=nodes) for step in range(2 * (nodes - 1))]]


def _ring_all_gather(nodes: int) -> Schedule:
    """Each node sends its own part to the next node, then every part that it receives."""
    return [[CollectiveMessage(to=1, after=step, part_of=-step) for step in range(nodes - 1)]]


def _ring_reduce_scatter(nodes: int) -> Schedule:
    """One n-th of the tensor goes round the ring once to be summed, as in NCCL: the first half of an all-reduce."""
    return [[CollectiveMessage(to=1, after=step, parts=nodes) for step in range(nodes - 1)]]


def _direct_all_gather(nodes: int) -> Schedule:
    """In turn d, each node sends its own part to the node d ranks further, as in `Fabric.all_gather_async`."""
    return [[CollectiveMessage(to=step + 1, after=step) for step in range(nodes - 1)]]


def _direct_reduce_scatter(nodes: int) -> Schedule:
    """In turn d, each node sends the node d ranks further its n-th of the tensor, to be summed there."""
    return [[CollectiveMessage(to=step + 1, after=step, parts=nodes) for step in range(nodes - 1)]]


def _binomial_broadcast(nodes: int) -> Schedule:
    """In step k, each node that has the tensor sends it to the node 2^k ranks further, as in gloo.

    gloo starts all sends of a node at once. So the steps overlap, and a root of four nodes needs two tensors' time
    for its first message too.
    """
    return [
        [
            CollectiveMessage(to=1 << step, after=min(place, 1))
            for step in range(place.bit_length(), nodes.bit_length())
            if place + (1 << step) < nodes
        ]
        for place in range(nodes)
    ]


def _ring_broadcast(nodes: int, chunks: int) -> Schedule:
    """The tensor goes round the ring once, in chunks: a node sends a chunk while the next one arrives (NCCL)."""
    if nodes == 1:
        return [[]]
    root = [CollectiveMessage(to=1, after=0, parts=chunks)] * chunks
    between = [CollectiveMessage(to=1, after=chunk + 1, parts=chunks) for chunk in range(chunks)]
    return [root, *[between] * (nodes - 2), []]


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
_OWN = (
    Collective(name="all_reduce", code=0, chakra=0, schedule=_ring_all_reduce, gloo_segment=1 << 20),
    Collective(
        name="all_gather",
        code=3,
        chakra=2,
        schedule=_direct_all_gather,
        nccl=_ring_all_gather,
        in_turns=True,
        sizes_differ=True,
    ),
    Collective(
        name="broadcast",
        code=4,
        chakra=5,
        schedule=_binomial_broadcast,
        nccl_in_chunks=_ring_broadcast,
        rooted=True,
        gloo_sends_at_once=True,
    ),
    Collective(name="barrier", code=5, chakra=9, schedule=_dissemination_barrier),
    Collective(
        name="reduce_scatter",
        code=7,
        chakra=7,
        schedule=_direct_reduce_scatter,
        nccl=_ring_reduce_scatter,
        in_turns=True,
    ),
)
_ALL: tuple[Collective, ...] = with_packages(_OWN, "collectives", Collective)

COLLECTIVES = {collective.code: collective for collective in _ALL}
"""Every collective by its code."""

_BY_NAME = {collective.name: collective for collective in _ALL}
if len(_ALL) != len(COLLECTIVES):
    raise ValueError("two collectives have the same code")


def bytes_on_wire(
    name: str, size: int, world_size: int, place: int = 0, backend: Backend = "gloo"
) -> tuple[int, int]:
    """Bytes that one of `world_size` nodes sends and receives in the collective `name`.

    Args:
        size: as `TraceBuilder.post` takes it; the parts of an all-gather have one size.
        place: the node's rank, counted from the root of a broadcast.
        backend: in a broadcast, the root sends the tensor once with NCCL and several times with gloo.

    Raises:
        ValueError: for an unknown collective.
    """
    shares = _shares(name, world_size, backend)
    sent, received, whole = shares[place % len(shares)]
    return size * sent // whole, size * received // whole


@lru_cache(maxsize=256)
def _shares(name: str, world_size: int, backend: Backend) -> list[tuple[int, int, int]]:
    """Tensors that each place sends and receives: numerators, and their common denominator."""
    if name not in _BY_NAME:
        raise ValueError(f"no collective {name!r}; add it to istbench/cluster/collectives.py")
    rows = _BY_NAME[name].between(world_size, backend)
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
