"""Links, connections and messages of the simulated cluster.

The model: nodes hang on a switch that never blocks. Every ordered pair of nodes has one connection, first in
first out, one message on the wire at a time; before its bytes flow a message holds it for `overhead` seconds.
The messages flowing share the links they cross (the sender's outgoing, the receiver's incoming; one for both
where not full duplex) max-min fairly, as TCP connections of equal round-trip time do. The last byte arrives
`latency` seconds after it left. Store and forward, one message a link, would be simpler, but makes peers that are
served in rank order queue up behind each other, which gloo's concurrent connections do not.
Sends wait in a priority queue before their connection, which holds `window` of them and never reorders those.
"""

from typing import NamedTuple

import numpy as np

from istbench.cluster.jit import jit
from istbench.cluster.program import Floats, Ints, Program

ACTIVE, DIRTY, TODO, RUNNABLE, OVERHEAD_HEAD, OVERHEAD_TAIL, ARRIVAL_HEAD, ARRIVAL_TAIL, SPANS, TRANSFERS = range(
    10
)
LATENCY, OVERHEAD, CAPACITY_OUT, CAPACITY_IN, NEXT_END = range(5)
SPAN_COMPUTE, SPAN_COMMUNICATION, SPAN_IDLE, SPAN_TRANSFER = range(4)


class State(NamedTuple):
    """Everything that changes, and the network's parameters (`x`, by the names above).

    A slot is an operation of one repetition of the sample, modulo the repetitions held at once.
    Arrays a pair (source * n + target): connection. Arrays a slot: operation. Arrays a node: program.
    """

    i: Ints
    x: Floats
    window: int
    streams: int
    duplex: int
    # a connection
    queue_head: Ints
    queue_tail: Ints
    wire_head: Ints
    wire_tail: Ints
    in_window: Ints
    rate: Floats
    left: Floats
    since: Floats
    end: Floats
    flow_start: Floats
    active: Ints
    link_count: Ints
    link_left: Floats
    link_tight: Ints
    fixed: Ints
    waiting_overhead: Ints
    overhead_until: Floats
    arrival_slot: Ints
    arrival_at: Floats
    # a slot
    next_slot: Ints
    message_bytes: Floats
    posted_at: Floats
    ready: Ints
    missing: Ints
    done: Ints
    started: Ints
    sending: Ints
    sent: Ints
    received: Ints
    after_head: Ints
    after_next: Ints
    todo: Ints
    in_todo: Ints
    # a repetition held
    held: Ints
    open_ops: Ints
    # a node
    position: Ints
    repetition: Ints
    waits_for: Ints
    wait_since: Floats
    busy_until: Floats
    runnable: Ints
    stalled: Ints
    coll_posted: Ints
    coll_started: Ints
    coll_running: Ints
    marked: Ints
    spent: Floats
    bytes_out: Floats
    bytes_in: Floats
    # results
    mark_at: Floats
    mark_spent: Floats
    span_what: Ints
    span_time: Floats


@jit
def add_span(s: State, kind: int, node: int, op: int, peer: int, size: float, start: float, end: float) -> None:
    k = s.i[SPANS]
    if k < len(s.span_what):
        s.span_what[k, 0] = kind
        s.span_what[k, 1] = node
        s.span_what[k, 2] = op
        s.span_what[k, 3] = peer
        s.span_time[k, 0] = start
        s.span_time[k, 1] = end
        s.span_time[k, 2] = size
        s.i[SPANS] = k + 1


@jit
def _urgent(p: Program, s: State, slot: int, other: int) -> bool:
    """Whether `slot` goes before `other`: by priority, then in the order of posting."""
    a, b = slot % p.ops, other % p.ops
    if p.priority[a] != p.priority[b]:
        return bool(p.priority[a] < p.priority[b])
    first, second = s.held[slot // p.ops], s.held[other // p.ops]
    return bool(first < second) or bool(first == second and a < b)


@jit
def queue_send(p: Program, s: State, slot: int, now: float) -> None:
    """A send whose two ends are ready: into the priority queue of its connection."""
    op = slot % p.ops
    pair = p.node[op] * p.n + p.peer[op]
    s.message_bytes[slot] = p.size[op]
    s.next_slot[slot] = -1
    head, tail = s.queue_head[pair], s.queue_tail[pair]
    if head < 0:
        s.queue_head[pair] = slot
        s.queue_tail[pair] = slot
    elif _urgent(p, s, tail, slot):
        s.next_slot[tail] = slot
        s.queue_tail[pair] = slot
    else:
        before, at = -1, head
        while at >= 0 and _urgent(p, s, at, slot):
            before, at = at, s.next_slot[at]
        s.next_slot[slot] = at
        if before < 0:
            s.queue_head[pair] = slot
        else:
            s.next_slot[before] = slot
    fill_window(s, pair, now)


@jit
def fill_window(s: State, pair: int, now: float) -> None:
    while s.in_window[pair] < s.window and s.queue_head[pair] >= 0:
        slot = s.queue_head[pair]
        s.queue_head[pair] = s.next_slot[slot]
        if s.queue_head[pair] < 0:
            s.queue_tail[pair] = -1
        s.in_window[pair] += 1
        put_on_wire(s, pair, slot, now)


@jit
def put_on_wire(s: State, pair: int, slot: int, now: float) -> None:
    """Commit a message to its connection, behind what is there."""
    s.next_slot[slot] = -1
    if s.wire_head[pair] < 0:
        s.wire_head[pair] = slot
        s.wire_tail[pair] = slot
        _start_head(s, pair, now)
    else:
        s.next_slot[s.wire_tail[pair]] = slot
        s.wire_tail[pair] = slot


@jit
def _start_head(s: State, pair: int, now: float) -> None:
    s.flow_start[pair] = now
    if s.x[OVERHEAD] > 0:
        k = s.i[OVERHEAD_TAIL] % len(s.waiting_overhead)
        s.waiting_overhead[k] = pair
        s.overhead_until[k] = now + s.x[OVERHEAD]
        s.i[OVERHEAD_TAIL] += 1
    else:
        start_flow(s, pair, now)


@jit
def start_flow(s: State, pair: int, now: float) -> None:
    s.active[s.i[ACTIVE]] = pair
    s.i[ACTIVE] += 1
    s.left[pair] = s.message_bytes[s.wire_head[pair]]
    s.rate[pair] = 0.0
    s.since[pair] = now
    s.end[pair] = now if s.left[pair] <= 0 else np.inf
    s.i[DIRTY] = 1


@jit
def end_flow(s: State, n: int, which: int, now: float) -> int:
    """Take the active flow number `which` off the wire; returns its slot, on its way to arrive."""
    pair = s.active[which]
    s.i[ACTIVE] -= 1
    s.active[which] = s.active[s.i[ACTIVE]]
    s.i[DIRTY] = 1
    s.i[TRANSFERS] += 1
    slot = s.wire_head[pair]
    s.wire_head[pair] = s.next_slot[slot]
    s.bytes_out[pair // n] += s.message_bytes[slot]
    s.bytes_in[pair % n] += s.message_bytes[slot]
    k = s.i[ARRIVAL_TAIL] % len(s.arrival_slot)
    # A broadcast may have several messages under way: where to is kept with the message.
    s.arrival_slot[k] = slot * n + pair % n
    s.arrival_at[k] = now + s.x[LATENCY]
    s.i[ARRIVAL_TAIL] += 1
    if s.wire_head[pair] >= 0:
        _start_head(s, pair, now)
    return int(slot)


@jit
def share_links(s: State, n: int, now: float) -> None:
    """Give every flow its max-min fair rate, by filling all links at once until one is full, and so on."""
    s.i[DIRTY] = 0
    flows, links = s.i[ACTIVE], 2 * n if s.duplex else n
    shift = n if s.duplex else 0
    for link in range(links):
        s.link_count[link] = 0
        s.link_left[link] = s.x[CAPACITY_OUT] if link < n else s.x[CAPACITY_IN]
    for k in range(flows):
        pair = s.active[k]
        s.link_count[pair // n] += 1
        s.link_count[pair % n + shift] += 1
        s.fixed[k] = 0
    todo = flows
    while todo > 0:
        share = np.inf
        for link in range(links):
            if s.link_count[link] > 0:
                share = min(share, s.link_left[link] / s.link_count[link])
        for link in range(links):
            count = s.link_count[link]
            s.link_tight[link] = 1 if count > 0 and s.link_left[link] / count <= share * (1 + 1e-12) else 0
        for k in range(flows):
            if s.fixed[k]:
                continue
            pair = s.active[k]
            out, into = pair // n, pair % n + shift
            if s.link_tight[out] or s.link_tight[into]:
                s.fixed[k] = 1
                todo -= 1
                s.link_count[out] -= 1
                s.link_count[into] -= 1
                s.link_left[out] -= share
                s.link_left[into] -= share
                _set_rate(s, pair, share, now)
    soonest = np.inf
    for k in range(flows):
        soonest = min(soonest, s.end[s.active[k]])
    s.x[NEXT_END] = soonest


@jit
def _set_rate(s: State, pair: int, rate: float, now: float) -> None:
    if rate == s.rate[pair]:
        return
    s.left[pair] = max(0.0, s.left[pair] - s.rate[pair] * (now - s.since[pair]))
    s.since[pair] = now
    s.rate[pair] = rate
    s.end[pair] = now + s.left[pair] / rate
