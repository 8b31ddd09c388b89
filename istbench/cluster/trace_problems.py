"""Checks that the events of a trace fit together, so that it can be replayed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.trace import (
    AFTER,
    EVENT,
    EVENTS,
    KINDS,
    MARK,
    MARKS,
    NOT_COLLECTIVE,
    POST,
    RECEIVE,
    SEND,
    WAIT,
    WAIT_BEFORE,
    WITH_PEER,
    Trace,
)

_MOST_SECONDS, _MOST_BYTES = 1e9, 2**53


def _among(codes: Iterable[int]) -> NDArray[np.bool_]:
    """By kind of an event, whether it is among `codes`. Reading it takes less than `np.isin` of short arrays."""
    return np.isin(np.arange(256), list(codes))


_IS_COLLECTIVE, _HAS_PEER = ~_among(NOT_COLLECTIVE), _among(WITH_PEER)
_SIZES_DIFFER = _among(code for code, collective in COLLECTIVES.items() if collective.sizes_differ)


def problem(trace: Trace) -> str | None:
    """The reason why `trace` cannot be replayed, in a few words; None for a sound trace."""
    if not trace.nodes:
        return "no nodes"
    if trace.world_size % len(trace.nodes):
        return f"{len(trace.nodes)} nodes of {trace.world_size}"
    first: NDArray[Any] | None = None
    order: NDArray[Any] | None = None
    for rank, events in enumerate(trace.nodes):
        found = _problem_of_node(events, trace.world_size, rank)
        if found:
            return f"node {rank}: {found}"
        marks = events["kind"][events["code"] == MARK]
        posts = events[events["code"] == POST]
        collectives = posts[_IS_COLLECTIVE[posts["kind"]]][["kind", "peer", "match", "bytes"]]
        collectives["bytes"][_SIZES_DIFFER[collectives["kind"]]] = 0
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
    before = events["op"][events["code"] == WAIT_BEFORE]
    if np.any((before < 0) | (before >= len(posts))):
        return "it waits for an operation that the sample before did not post"
    peers = posts["peer"][_HAS_PEER[posts["kind"]]]
    if np.any(peers < 0) or np.any(peers >= world_size):
        return f"a peer outside the {world_size} nodes"
    if np.any(posts["peer"][(posts["kind"] == SEND) | (posts["kind"] == RECEIVE)] == rank):
        return "a transfer to itself"
    # Comparisons with NaN are false.
    seconds, sizes = events["seconds"], posts["bytes"]
    if not np.all((seconds >= 0) & (seconds <= _MOST_SECONDS)) or np.any((sizes < 0) | (sizes > _MOST_BYTES)):
        return "negative or unreadable seconds or bytes"
    if not np.all(np.abs(events["at"]) <= _MOST_SECONDS):
        return "events without a time"
    after = np.flatnonzero(events["code"] == AFTER)
    codes = np.append(events["code"], np.uint8(MARK))[after + 1]
    kinds = np.append(events["kind"], np.uint8(0))[after + 1]
    if np.any((codes != AFTER) & ~((codes == POST) & ~_IS_COLLECTIVE[kinds])):
        return "only a send, a receive or work can come after an operation"
    return None


def _unmatched_transfer(trace: Trace) -> str | None:
    # By the sender and the distance from it to the receiver, because later ranks may repeat those in the trace.
    n = trace.world_size
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, events in enumerate(trace.nodes):
        posts = events[events["code"] == POST]
        for kind, peer, match, size in posts[["kind", "peer", "match", "bytes"]].tolist():
            if kind == SEND:
                sent.setdefault((rank, (peer - rank) % n), []).append((match, size))
            elif kind == RECEIVE:
                received.setdefault((peer % len(trace.nodes), (rank - peer) % n), []).append((match, size))
    for source, distance in sorted({*sent, *received}):
        between = f"from node {source} to node {(source + distance) % n}"
        given, taken = sent.get((source, distance), []), received.get((source, distance), [])
        if len(given) != len(taken):
            return f"{len(given)} sends {between}, but {len(taken)} receives"
        if any(match != i for transfers in (given, taken) for i, (match, _) in enumerate(transfers)):
            return f"transfers {between} are not numbered from 0"
        if given != taken:
            return f"sends {between} and their receives differ in size"
    return None
