"""Nodes of a trace that repeat other nodes, so that a replay simulates each kind of node once.

Let each node do the same as the node `period` ranks before it, with peers that many ranks further. On a cluster of
equal nodes all of them then do it at the same time: turning the ranks by `period` changes nothing in the
simulation, which therefore gives turned nodes equal times. A message to a node is a message to the node of the same
kind. On equal hosts of several nodes, this holds for periods of whole hosts.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.trace import COMPUTE, EVENT, POST, RECEIVE, SEND, Trace

_COMPARED = [name for name in EVENT.names or () if name not in ("peer", "at")]


def fold(trace: Trace, turn: int = 1) -> Trace:
    """`trace` with the nodes of its shortest period alone, a multiple of `turn`, which divides the number of nodes.

    It is `trace` itself if it holds such a number of nodes, and none repeats another.
    """
    world = trace.world_size
    trace = unfold(trace, math.lcm(len(trace.nodes), turn))
    given = len(trace.nodes)
    for period in range(turn, given // 2 + 1, turn):
        if given % period == 0 and all(
            repeats(trace.nodes[rank], trace.nodes[rank - period], period, world) for rank in range(period, given)
        ):
            return dataclasses.replace(trace, nodes=trace.nodes[:period])
    return trace


def unfold(trace: Trace, count: int | None = None) -> Trace:
    """`trace` with its first `count` nodes, also those that repeat the ones it holds; with all by default."""
    given, world = len(trace.nodes), trace.world_size
    count = world if count is None else count
    if given == count:
        return trace
    return dataclasses.replace(
        trace, nodes=tuple(_turned(trace.nodes[rank % given], rank - rank % given, world) for rank in range(count))
    )


def by_work(trace: Trace, work: Sequence[float]) -> Trace:
    """All nodes of `trace`, with the computing of each multiplied by its `work`, by rank."""
    nodes = []
    for events, factor in zip(unfold(trace).nodes, work, strict=True):
        own = events.copy()
        own["seconds"][own["code"] == COMPUTE] *= factor
        nodes.append(own)
    return dataclasses.replace(trace, nodes=tuple(nodes))


def _turned(events: NDArray[Any], further: int, world: int) -> NDArray[Any]:
    """The `events` of a node, `further` ranks after it."""
    turned, peers = events.copy(), _with_peer(events)
    turned["peer"][peers] = (events["peer"][peers] + further) % world
    return turned


def _with_peer(events: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the `events` that send to a peer or receive from it."""
    posts: NDArray[np.bool_] = (events["code"] == POST) & np.isin(events["kind"], (SEND, RECEIVE))
    return posts


def one_stands_for_all(traced: Callable[[int], NDArray[Any]], world: int) -> bool:
    """Whether the nodes that `traced` plans, by rank, repeat rank 0: the next, the middle and the last one do."""
    first, some = traced(0), {1, world // 2, world - 1} - {0, world}
    return all(repeats(traced(rank), first, rank, world) for rank in some)


def repeats(events: NDArray[Any], earlier: NDArray[Any], further: int, world: int) -> bool:
    """Whether `events` are `earlier` ones of a node that is `further` ranks before."""
    if len(events) != len(earlier) or any(not np.array_equal(events[name], earlier[name]) for name in _COMPARED):
        return False
    posted = np.unique(events["kind"][events["code"] == POST]).tolist()
    if any(kind in COLLECTIVES and len(COLLECTIVES[kind].schedule(4)) > 1 for kind in posted):
        return False  # places differ, for example the root's from the others'
    peers = _with_peer(events)
    return np.array_equal(events["peer"][peers], (earlier["peer"][peers] + further) % world)
