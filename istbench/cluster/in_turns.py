"""All-reduces between distant nodes: where they take turns, and which messages a replay then sends.

A trace has one operation for each all-reduce, wherever it was recorded. On a cluster of distant nodes, a replay
puts in its place the exchanges that istbench/fabric/all_reduce.py makes there. The first of them leave where the
trace posts the all-reduce. The others follow where it waits, as the thread of training starts them. All-reduces
that it awaits together take their steps together.

The time in which a node adds up what it received is left out, as that of gloo's threads is.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from istbench.cluster.collective import Backend
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.repeated_nodes import unfold
from istbench.cluster.trace import (
    AFTER,
    COMPUTE,
    EVENT,
    KINDS,
    NOT_COLLECTIVE,
    POST,
    RECEIVE,
    SEND,
    WAIT,
    WAIT_BEFORE,
    Trace,
)

FAR_S = 5e-3
"""Seconds there and back between distant nodes; hosts of one site need less than 1 ms."""
LEAST_MESSAGE = 2**17
"""Bytes to one node of one slice, at least."""
MOST_SLICES = 8

_MOST_MORE = 2**16  # bytes that a node sends more to save latencies; they take 5 ms at 100 Mbit/s
_ITEM = 4  # a trace has bytes alone; values of other sizes change the zeros that fill a slice
_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER = map(KINDS.index, ("all_reduce", "all_gather", "reduce_scatter"))
_MATCHES = 2**30  # numbers of transfers in turns follow those of a method

_Exchange: TypeAlias = Sequence[tuple[int, int, int]]
"""Kinds of operations that start together, their bytes and their peers."""


def takes_turns(round_trip_s: float, backend: Backend) -> bool:
    """Whether nodes `round_trip_s` apart, there and back, average in turns. NCCL keeps its own all-reduce."""
    return backend == "gloo" and round_trip_s >= FAR_S


def nodes_of_hosts(sizes: Iterable[int], nodes: int) -> int:
    """The nodes of a host by which all-reduces go, if these `sizes` of hosts are equal; else 1."""
    size, *others = set(sizes)
    return size if not others and 1 < size < nodes and nodes % size == 0 else 1


def goes_whole(size: int, nodes: int) -> bool:
    """Whether a tensor of `size` bytes goes whole to all nodes at once: one latency in place of one each turn."""
    return size * (nodes - 1) * (nodes - 2) / nodes <= _MOST_MORE


def slice_values(values: int, itemsize: int, parts: int) -> int:
    """The values of a slice of a tensor, a multiple of `parts`. A message carries one of `parts` parts of it."""
    slices = max(1, min(MOST_SLICES, values * itemsize // (parts * LEAST_MESSAGE)))
    return -(-values // (slices * parts)) * parts


def buffer_bytes(size: int, nodes: int) -> int:
    """Bytes that a node needs beside a tensor of `size` bytes: the terms of the other nodes, and its own mean."""
    if goes_whole(size, nodes):
        return size * (nodes - 1) + min(size, slice_values(-(-size // _ITEM), _ITEM, 1) * _ITEM)
    return size


def buffers_of(events: NDArray[Any], nodes: int) -> tuple[int, int]:
    """Bytes of the buffers of all-reduces in the `events` of a node: while it computes, and at most."""
    under_way: dict[int, int] = {}
    beside = most = 0
    for code, kind, op, size in events[["code", "kind", "op", "bytes"]].tolist():
        if code == COMPUTE:
            beside = max(beside, sum(under_way.values()))
        elif code == POST and kind == _ALL_REDUCE:
            under_way[op] = buffer_bytes(size, nodes)
            most = max(most, sum(under_way.values()))
        elif code == WAIT:
            under_way.pop(op, None)
    return beside, most


def turns_on(profile: ClusterProfile, nodes: int) -> bool:
    """Whether `nodes` nodes of `profile` are distant, and average in turns."""
    there_and_back = 2 * profile.latency_s if nodes > profile.host_nodes else 0.0
    return profile.in_turns and takes_turns(there_and_back, profile.collectives)


def seen_on(trace: Trace, profile: ClusterProfile) -> Trace:
    """`trace` with the messages of its all-reduces in turns, if the nodes of `profile` take them; else `trace`.

    So do the exchanges of `ist`, which near nodes make in turns, and distant ones at once.
    An all-reduce that an operation follows (`after`), or whose wait is not in the sample, stays one of gloo.
    """
    if not turns_on(profile, trace.world_size):
        return trace
    host_nodes = nodes_of_hosts([profile.host_nodes], trace.world_size)
    return trace.derived("in turns", host_nodes, lambda: _in_turns(trace, host_nodes))


def _in_turns(trace: Trace, host_nodes: int) -> Trace:
    trace = trace if trace.meta.transport else _at_once(trace)
    # The places of collectives are the same on all nodes.
    awaited = [_awaited(events) for events in trace.nodes]
    places = frozenset[int].intersection(*(frozenset(own) for own in awaited))
    if not places:
        return trace
    trace = unfold(trace, math.lcm(len(trace.nodes), host_nodes))  # each place on a host has its own peers
    nodes = tuple(
        _Exchanged(rank, trace.world_size, host_nodes, {own[place] for place in places}).of(events)
        for rank, events in enumerate(trace.nodes)
        for own in [awaited[rank % len(awaited)]]
    )
    return dataclasses.replace(trace, nodes=nodes, meta=msgspec.structs.replace(trace.meta, transport=True))


def _at_once(trace: Trace) -> Trace:
    """`trace` with the messages of `Fabric.exchange_among_all` at once, as between distant nodes."""
    turns = [_turns_of(events) for events in trace.nodes]
    if not any(own.any() for own in turns):
        return trace
    nodes = tuple(events[~own] for events, own in zip(trace.nodes, turns, strict=True))
    return dataclasses.replace(trace, nodes=nodes, meta=msgspec.structs.replace(trace.meta, transport=True))


def _turns_of(events: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of `events` let a message wait for messages of the turn before.

    Work may wait for messages too, such as an update for pushed gradients; that wait stays.
    """
    places = np.flatnonzero(events["code"] == POST)
    is_message = np.isin(events["kind"][places], (SEND, RECEIVE))
    messages = events["op"][places[is_message]]
    owners = np.searchsorted(places, np.arange(len(events)))  # an `after` lies before its own operation
    owned = np.append(is_message, False)[owners]
    return np.asarray((events["code"] == AFTER) & np.isin(events["op"], messages) & owned)


def _awaited(events: NDArray[Any]) -> dict[int, int]:
    """The all-reduces with a wait of their own among `events`: their numbers, by place among collectives."""
    posts = events[events["code"] == POST]
    collectives = posts[~np.isin(posts["kind"], NOT_COLLECTIVE)]
    waits, others = (
        events["op"][events["code"] == WAIT],
        events["op"][np.isin(events["code"], (AFTER, WAIT_BEFORE))],
    )
    fit = (
        (collectives["kind"] == _ALL_REDUCE)
        & np.isin(collectives["op"], waits)
        & ~np.isin(collectives["op"], others)
    )
    return {int(place): int(collectives["op"][place]) for place in np.flatnonzero(fit)}


@dataclass(kw_only=True)
class _Slice:
    """A slice under way: the exchanges to come, and the operations of the one that has started."""

    exchanges: Iterator[_Exchange]
    started: list[int] = field(default_factory=list)


class _Exchanged:
    """The events of a node, with the exchanges of the all-reduces `turning` (by number) in their place."""

    def __init__(self, rank: int, world: int, host_nodes: int, turning: set[int]) -> None:
        self._rank, self._world, self._host_nodes, self._turning = rank, world, host_nodes, turning
        self._rows: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}
        self._posted = 0
        self._matches = Counter[tuple[int, int]]()
        self._slices: dict[int, list[_Slice]] = {}

    def of(self, events: NDArray[Any]) -> NDArray[Any]:
        """The `events` of this node."""
        rows = events.tolist()
        at = 0
        while at < len(rows):
            end = at + 1
            code, kind, op, peer, priority, match, size, seconds, time = rows[at]
            if code == WAIT:
                while end < len(rows) and rows[end][0] == WAIT:
                    end += 1
                self._wait([row[2] for row in rows[at:end]], time)
            elif code == POST and op in self._turning:
                self._slices[op] = [_Slice(exchanges=own) for own in self._slices_of(size)]
                self._step([op], time)
            else:
                if code == POST:
                    self._numbers[op], self._posted = self._posted, self._posted + 1
                self._rows.append((code, kind, op, peer, priority, match, size, seconds, time))
            at = end
        exchanged = np.array(self._rows, dtype=EVENT)
        # A wait may come before the post of its operation, in a sample that repeats.
        kept = np.isin(exchanged["code"], (POST, AFTER, WAIT_BEFORE)) & (exchanged["match"] < _MATCHES)
        exchanged["op"][kept] = [self._numbers.get(op, op) for op in exchanged["op"][kept].tolist()]
        return exchanged

    def _wait(self, ops: Sequence[int], time: float) -> None:
        turning = sorted(op for op in ops if op in self._turning)
        while self._step(turning, time):
            pass
        for op in ops:
            if op not in self._turning:
                self._append_wait(self._numbers[op], time)

    def _step(self, ops: Sequence[int], time: float) -> bool:
        """Take the next step of all-reduces `ops`: await an exchange of each slice, and start the next one."""
        slices = [own for op in ops for own in self._slices[op]]
        for own in slices:
            for number in own.started:
                self._append_wait(number, time)
            own.started = [self._post(*operation, time) for operation in next(own.exchanges, ())]
        return any(own.started for own in slices)

    def _append_wait(self, number: int, time: float) -> None:
        self._rows.append((WAIT, 0, number, -1, 0, -1, 0, 0.0, time))

    def _post(self, kind: int, size: int, peer: int, time: float) -> int:
        number, self._posted = self._posted, self._posted + 1
        match = _MATCHES + self._matches[kind, peer]
        self._matches[kind, peer] += 1
        self._rows.append((POST, kind, number, peer, 0, match, size, 0.0, time))
        return number

    def _slices_of(self, size: int) -> list[Iterator[_Exchange]]:
        """The exchanges of each slice of a tensor of `size` bytes."""
        whole = goes_whole(size, self._world)
        parts = 1 if whole else self._world
        values = -(-size // _ITEM)
        of_slice = slice_values(values, _ITEM, parts) * _ITEM
        cut = [min(of_slice, size - start) for start in range(0, size, of_slice or 1)]
        if not whole:
            cut[-1] += -cut[-1] % (parts * _ITEM)
        exchanges = self._whole if whole else self._by_hosts if self._host_nodes > 1 else self._by_parts
        return [exchanges(own) for own in cut]

    def _whole(self, size: int) -> Iterator[_Exchange]:
        yield self._with(range(self._world), size)

    def _by_parts(self, size: int) -> Iterator[_Exchange]:
        yield [(_REDUCE_SCATTER, size, -1)]
        yield [(_ALL_GATHER, size // self._world, -1)]

    def _by_hosts(self, size: int) -> Iterator[_Exchange]:
        place = self._rank % self._host_nodes
        first = self._rank - place
        here, there = range(first, first + self._host_nodes), range(place, self._world, self._host_nodes)
        own = size // len(here)
        yield self._with(here, own)
        if goes_whole(own, len(there)):
            yield self._with(there, own)
        else:
            yield self._with(there, own // len(there))
            yield self._with(there, own // len(there))
        yield self._with(here, own)

    def _with(self, ranks: Sequence[int], size: int) -> _Exchange:
        """A message of `size` bytes to and from each other rank of `ranks`, the next one first."""
        own = ranks.index(self._rank)
        peers = [*ranks[own + 1 :], *ranks[:own]]
        return [(kind, size, peer) for kind in (RECEIVE, SEND) for peer in peers if size]
