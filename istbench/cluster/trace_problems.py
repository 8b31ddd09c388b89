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
    code, kind, op = (np.ascontiguousarray(events[name]) for name in ("code", "kind", "op"))
    if np.any(code >= len(EVENTS)):
        return f"unknown event {int(code.max())}"
    posts = events[code == POST]
    if np.any(posts["kind"] >= len(KINDS)):
        return f"unknown operation {int(posts['kind'].max())}"
    marks = kind[code == MARK]
    if not len(marks) or np.any(marks >= len(MARKS)):
        return "no step or round ends in it" if not len(marks) else f"unknown mark {int(marks.max())}"
    if not np.array_equal(posts["op"], np.arange(len(posts))):
        return "operations are not numbered from 0"
    uses = (code == WAIT) | (code == AFTER)
    posted = np.cumsum(code == POST)
    if np.any(op[uses] < 0) or np.any(op[uses] >= posted[uses]):
        return "it waits for an operation that was not posted"
    before = op[code == WAIT_BEFORE]
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
    after = np.flatnonzero(code == AFTER)
    codes, kinds = np.append(code, np.uint8(MARK))[after + 1], np.append(kind, np.uint8(0))[after + 1]
    if np.any((codes != AFTER) & ~((codes == POST) & ~_IS_COLLECTIVE[kinds])):
        return "only a send, a receive or work can come after an operation"
    return None


def _unmatched_transfer(trace: Trace) -> str | None:
    n = trace.world_size
    if not any((events["peer"] >= 0).any() for events in trace.nodes):
        return None
    (sent, sent_match, sent_bytes), (taken, taken_match, taken_bytes) = (
        _transfers(trace, kind) for kind in (SEND, RECEIVE)
    )

    def between(way: np.int64) -> str:
        source, distance = divmod(int(way), n)
        return f"from node {source} to node {(source + distance) % n}"

    ways = np.union1d(sent, taken)
    sends, receives = (
        np.searchsorted(own, ways, "right") - np.searchsorted(own, ways, "left") for own in (sent, taken)
    )
    lone = np.flatnonzero(sends != receives)
    if len(lone):
        return f"{sends[lone[0]]} sends {between(ways[lone[0]])}, but {receives[lone[0]]} receives"
    for own, match in ((sent, sent_match), (taken, taken_match)):
        wrong = np.flatnonzero(match != np.arange(len(own)) - np.searchsorted(own, own))
        if len(wrong):
            return f"transfers {between(own[wrong[0]])} are not numbered from 0"
    differ = np.flatnonzero(sent_bytes != taken_bytes)
    return f"sends {between(sent[differ[0]])} and their receives differ in size" if len(differ) else None


def _transfers(trace: Trace, kind: int) -> tuple[NDArray[Any], ...]:
    """Way, number and bytes of each transfer of `kind`, by way and then in order.

    A way is the sender and the distance from it to the receiver, because later ranks may repeat those in the trace.
    """
    n, ways, own = trace.world_size, list[NDArray[Any]](), list[NDArray[Any]]()
    for rank, events in enumerate(trace.nodes):
        found = events[(events["code"] == POST) & (events["kind"] == kind)][["peer", "match", "bytes"]]
        peer = found["peer"].astype(np.int64)
        source, distance = (rank, peer - rank) if kind == SEND else (peer % len(trace.nodes), rank - peer)
        ways.append(source * n + distance % n)
        own.append(found)
    way, transfers = np.concatenate(ways), np.concatenate(own)
    order = np.argsort(way, kind="stable")
    return way[order], transfers["match"][order], transfers["bytes"][order]
