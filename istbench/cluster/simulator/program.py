"""A trace as flat arrays for the simulation."""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.collective import Backend, Schedule
from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.trace import (
    AFTER,
    COMPUTE,
    MARK,
    NOT_COLLECTIVE,
    POST,
    RECEIVE,
    SEND,
    Ints,
    Trace,
    round_ends,
)

Records: TypeAlias = Any
"""An array of records. Compiled functions read a field as an attribute, other code by its name."""
Fields: TypeAlias = tuple[str, str]
"""Names of the integers and of the floats of a record."""


_OPERATION: Fields = (
    "kind node peer pair priority partner collective first_message messages awaits at_once segment streams",
    "bytes seconds",
)
_EVENT: Fields = ("code argument owner", "seconds")
_MESSAGE: Fields = ("to after counts part_of", "parts")


class Program(NamedTuple):
    """One sample of rounds, all `n` nodes of the trace. Operations are numbered across nodes, node 0's first.

    Each of them stands for `world / n` nodes, which do the same at the same time (`Trace`). A connection is named
    by its sender and the distance in ranks to its receiver: [sender * world + distance].

    Attributes:
        start, op_base: the first event and the first operation of each node [n]; `start` also has the end.
        event: `code`, `argument` (the operation, or the kind of mark), `owner` (of an after: the later operation),
            `seconds`.
        op: `kind`, `node`, `peer`, `pair` (of a send: its connection), `priority`, `partner` (the other end of a
            transfer), `collective`, `bytes`, `seconds` (of work); of a collective, the place in `message` where its
            node's `messages` begin, the total count of the arriving messages (`awaits`), whether all its
            messages may flow `at_once`, the bytes of a `segment` of them, 0 for whole ones, and the `streams` that
            it takes: 0 if the fabric's transport carries it.
        members: the operations of each collective [collectives, n].
        message: the fields of `CollectiveMessage`, for all schedules in use.
        at_once: the most messages of one operation that flow at once.
    """

    n: int
    world: int
    ops: int
    start: Ints
    op_base: Ints
    event: Records
    op: Records
    members: Ints
    message: Records
    at_once: int


def compile_trace(
    trace: Trace, compute_scale: float, backend: Backend, speeds: Sequence[float], *, work_scale: float, far: bool
) -> Program:
    """The program of `trace` (which must be sound), with compute seconds multiplied by `compute_scale`.

    backend: carries the collectives. speeds: of computing, by node of the trace; empty if they are 1. work_scale:
    of the seconds of work. far: the nodes are distant (`cluster.in_turns`).
    """
    n, world = len(trace.nodes), trace.world_size
    counts = [int(np.count_nonzero(events["code"] == POST)) for events in trace.nodes]
    op_base = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    events = np.concatenate(trace.nodes)
    base = np.repeat(op_base[:-1], [len(node) for node in trace.nodes])
    code = events["code"].astype(np.int64)
    argument = np.where(code == MARK, events["kind"], np.where(code == COMPUTE, 0, events["op"] + base))
    posts = events[code == POST]
    node = np.repeat(np.arange(n), counts)
    members = np.flatnonzero(~np.isin(posts["kind"], NOT_COLLECTIVE)).reshape(n, -1).T
    collective = np.full(len(posts), -1, dtype=np.int64)
    collective[members] = np.arange(len(members))[:, None]
    op = records(len(posts), _OPERATION).view(np.recarray)
    for name in ("kind", "peer", "priority", "bytes"):
        op[name] = posts[name]
    op.node, op.collective = node, collective
    op.partner = _partners(posts, node, n, world)
    op.pair = node * world + (op.peer - node) % world
    op.seconds = posts["seconds"] * work_scale
    message = _schedule(op, world, backend, trace.meta.transport, far)
    event = records(len(events), _EVENT).view(np.recarray)
    event.code, event.argument, event.owner = code, argument, _owners(code, argument)
    event.seconds = events["seconds"] * compute_scale
    if len(speeds):
        op.seconds /= np.asarray(speeds)[node]
        event.seconds /= np.repeat(speeds, [len(own) for own in trace.nodes])
    return Program(
        n=n,
        world=world,
        ops=len(posts),
        start=np.concatenate([[0], np.cumsum([len(node) for node in trace.nodes])]).astype(np.int64),
        op_base=op_base,
        event=event.view(_record(*_EVENT), np.ndarray),
        op=op.view(_record(*_OPERATION), np.ndarray),
        members=np.ascontiguousarray(members, dtype=np.int64),
        message=message,
        at_once=max(1, int(op.messages[op.at_once > 0].max(initial=0))),
    )


def records(size: int, fields: Fields, **start: Any) -> Records:
    """`size` records of zeros, whose fields are 64 bits wide; `start` has other values of some fields."""
    made = np.zeros(size, _record(*fields))
    for name, value in start.items():
        made[name] = value
    return made


@functools.cache
def _record(integers: str, floats: str) -> np.dtype[Any]:
    return np.dtype(
        [(name, np.int64) for name in integers.split()] + [(name, np.float64) for name in floats.split()]
    )


def stops(trace: Trace, rounds: int) -> Ints:
    """Number of events of each node [n] in `rounds` rounds; the sample repeats as often as needed."""
    whole, rest = divmod(rounds, trace.rounds)
    counts = [whole * len(node) for node in trace.nodes]
    if rest:
        for rank, node in enumerate(trace.nodes):
            marks = np.flatnonzero(node["code"] == MARK)
            counts[rank] += int(marks[round_ends(node["kind"][marks])[rest - 1]]) + 1
    return np.array(counts, np.int64)


def _schedule(op: Records, world: int, backend: Backend, transport: bool, far: bool) -> Records:
    """The messages of all collectives in `op`, each of `world` nodes. Writes the place of its own messages to
    each `op`.
    """
    collective = op.collective >= 0
    chunks = np.zeros(len(op), np.int64)
    schedules: dict[tuple[int, int], Schedule] = {}
    for kind in np.unique(op.kind[collective]).tolist():
        own = op.kind == kind
        op.at_once[own] = COLLECTIVES[kind].sends_at_once(backend, far=far)
        op.segment[own] = COLLECTIVES[kind].gloo_segment if backend == "gloo" else 0
        op.streams[own] = not (transport and COLLECTIVES[kind].in_turns and backend == "gloo")
        sizes, which = np.unique(op.bytes[own], return_inverse=True)
        known = COLLECTIVES[kind]
        cut = [known.chunks(int(size), world, backend) for size in sizes.tolist()]
        chunks[own] = np.array(cut)[which]
        schedules |= {(kind, count): known.between(world, backend, count, far=far) for count in sorted(set(cut))}
    rows = {id(row): row for schedule in schedules.values() for row in schedule}  # each once
    flat = [message for row in rows.values() for message in row]
    message = records(len(flat), _MESSAGE)
    for name in message.dtype.names or ():
        message[name] = [getattr(own, name) for own in flat]
    ends = dict(zip(rows, itertools.accumulate(map(len, rows.values())), strict=True))
    for (kind, count), schedule in schedules.items():
        own = (op.kind == kind) & (chunks == count)
        place = (op.node[own] - np.maximum(op.peer[own], 0)) % world
        lengths = np.array([len(row) for row in schedule])
        op.first_message[own] = (np.array([ends[id(row)] for row in schedule]) - lengths)[place % len(schedule)]
        op.messages[own] = lengths[place % len(schedule)]
        op.awaits[own] = _awaits(schedule, world)[place]
    return message


def _awaits(schedule: Schedule, n: int) -> Ints:
    """Total count of the messages that arrive at each place [n]."""
    awaits = np.zeros(n, np.int64)
    counts: dict[int, Counter[int]] = {id(row): Counter() for row in schedule}
    for row in {id(row): row for row in schedule}.values():
        for message in row:
            counts[id(row)][message.to] += message.counts
    for place, row in enumerate(schedule):
        for to, count in counts[id(row)].items():
            awaits[slice(None) if len(schedule) == 1 else (place + to) % n] += count
    return awaits


def _owners(code: Ints, argument: Ints) -> Ints:
    owner = np.full(len(code), -1, dtype=np.int64)
    posts = np.flatnonzero(code == POST)
    after = np.flatnonzero(code == AFTER)
    owner[after] = argument[posts[np.searchsorted(posts, after)]] if len(after) else 0
    return owner


def _partners(posts: NDArray[Any], node: Ints, n: int, world: int) -> Ints:
    """The other end of each transfer; -1 for other operations."""
    peer = posts["peer"].astype(np.int64)
    sends, receives = (np.flatnonzero(posts["kind"] == kind) for kind in (SEND, RECEIVE))
    from_sender = np.lexsort((posts["match"][sends], (peer[sends] - node[sends]) % world, node[sends]))
    from_receiver = np.lexsort(
        (posts["match"][receives], (node[receives] - peer[receives]) % world, peer[receives] % n)
    )
    partner = np.full(len(posts), -1, dtype=np.int64)
    partner[sends[from_sender]] = receives[from_receiver]
    partner[receives[from_receiver]] = sends[from_sender]
    return partner
