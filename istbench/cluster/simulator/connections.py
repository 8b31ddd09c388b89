"""Connections of the simulated cluster, and the messages on them.

Each ordered pair of nodes has one connection, first in first out, with one message on the wire at a time. A
connection prepares each message for `overhead` seconds, one after another, while earlier messages flow. The last
byte arrives after the latency, which is another between nodes of one host, and later if the message goes in
segments that wait for each other. A connection has at most `tcp_window` bytes under way, and pauses until a third
of them is acknowledged. One that was idle for a while begins with less, as TCP's do. Sends wait in a priority queue
before their connection. The connection holds `window` sends and never reorders them.
"""

import numpy as np

from istbench.base.jit import jit_part
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import WAKING, State, insert

_FIRST_BYTES = 14_480  # ten segments of 1448 bytes (RFC 6928)
MOST_PAUSES = 64  # of a message; the windows of a longer one are put together


@jit_part
def add_span(state: State, kind: int, rank: int, op: int, peer: int, size: float, start: float, end: float) -> None:
    shared = state.shared[0]
    if shared.spans < len(state.span):
        span = state.span[shared.spans]
        span.kind, span.node, span.op, span.peer = kind, rank, op, peer
        span.start, span.end, span.bytes = start, end, size
        shared.spans += 1


@jit_part
def queue_send(program: Program, state: State, slot: int, now: float) -> None:
    """Put a send with two ready ends into the queue of its connection, behind sends of equal priority."""
    op = program.op[slot % program.ops]
    pair = op.pair
    connection = state.connection[pair]
    state.message[slot * state.shared[0].at_once].bytes = op.bytes
    state.message[slot * state.shared[0].at_once].waits_s = 0.0
    state.slot[slot].next = -1
    if connection.queue_head < 0:
        connection.queue_head = connection.queue_tail = slot
    elif program.op[connection.queue_tail % program.ops].priority <= op.priority:
        state.slot[connection.queue_tail].next = slot
        connection.queue_tail = slot
    else:
        connection.queue_head = insert(program, state, connection.queue_head, slot)
    fill_window(state, pair, now)


@jit_part
def fill_window(state: State, pair: int, now: float) -> None:
    connection = state.connection[pair]
    while connection.in_window < state.shared[0].window and connection.queue_head >= 0:
        slot = connection.queue_head
        connection.queue_head = state.slot[slot].next
        if connection.queue_head < 0:
            connection.queue_tail = -1
        connection.in_window += 1
        put_on_wire(state, pair, slot * state.shared[0].at_once, now)


@jit_part
def put_on_wire(state: State, pair: int, message: int, now: float) -> None:
    """Commit a message to its connection, behind the messages there."""
    connection = state.connection[pair]
    state.message[message].next = -1
    connection.prepared = max(now, connection.prepared) + state.shared[0].overhead
    state.message[message].ready_at = connection.prepared
    if connection.wire_head < 0:
        connection.wire_head = connection.wire_tail = message
        _start_head(state, pair, now)
    else:
        state.message[connection.wire_tail].next = message
        connection.wire_tail = message


@jit_part
def _start_head(state: State, pair: int, now: float) -> None:
    shared, connection = state.shared[0], state.connection[pair]
    connection.flow_start = now
    connection.bytes_after = state.message[connection.wire_head].bytes
    until = state.message[connection.wire_head].ready_at
    if shared.slow_from < np.inf and not connection.inside:
        until = max(now, until)
        until += _slow_start(state, pair, until - connection.idle_since)
    _start_flow_at(state, pair, until, now)


@jit_part
def _start_flow_at(state: State, pair: int, until: float, now: float) -> None:
    shared = state.shared[0]
    if until <= now:
        start_flow(state, pair, now)
        return
    place = shared.overhead_tail
    shared.overhead_tail += 1
    size = len(state.overhead)
    while place > shared.overhead_head and state.overhead[(place - 1) % size].until > until:
        earlier, later = state.overhead[(place - 1) % size], state.overhead[place % size]
        later.pair, later.until = earlier.pair, earlier.until
        place -= 1
    waiting = state.overhead[place % size]
    waiting.pair, waiting.until = pair, until


@jit_part
def _slow_start(state: State, pair: int, idle_s: float) -> float:
    """Seconds that a connection loses after `idle_s`, until it has all of the message under way that it can.

    Linux lets it have twice as much under way as it had. It halves that for each time-out of idling, down to a few
    segments (RFC 2861), and doubles it in each round trip.
    """
    shared, connection = state.shared[0], state.connection[pair]
    capacity = state.link[state.node[connection.source].link_out].capacity
    round_trip = 2 * shared.latency
    rate = min(capacity, shared.tcp_window / round_trip)
    most = min(rate * round_trip, state.message[connection.wire_head].bytes)
    lost = 0.0
    if idle_s > shared.slow_from:
        halved = connection.may_send / 2.0 ** min(1000.0, np.floor(idle_s / shared.slow_from))
        begun = connection.may_send = max(_FIRST_BYTES, halved)
        if begun < most:
            lost = max(0.0, round_trip * np.log2(most / begun) - (most - begun) / rate)
    connection.may_send = max(2 * most, connection.may_send)
    return float(lost)


@jit_part
def start_flow(state: State, pair: int, now: float) -> None:
    """Put the head's bytes, or as many as the window lets, on the links."""
    shared, connection = state.shared[0], state.connection[pair]
    size = connection.bytes_after
    if shared.tcp_window < np.inf and _has_window(state, pair):
        if now >= connection.window_ends:
            joined = max(1.0, np.ceil(connection.bytes_after / (MOST_PAUSES * shared.tcp_window)))
            capacity = state.link[state.node[connection.source].link_out].capacity
            pause_s = 2 * shared.latency + WAKING * shared.tcp_window / capacity
            connection.window_ends = now + pause_s * joined
            connection.window_left = shared.tcp_window * joined
        size = min(size, connection.window_left)
        connection.window_left -= size
    state.flow[shared.flowing].pair = pair
    _lay_route(state, shared.flowing, pair)
    shared.flowing += 1
    shared.links_changed = 1
    connection.bytes_left = size
    connection.bytes_after -= size
    connection.rate = 0.0
    connection.since = now
    connection.end = now if size <= 0 else np.inf


@jit_part
def _has_window(state: State, pair: int) -> bool:
    """Whether the window can hold back the head: not inside a host. Segments that wait are slower than it."""
    connection = state.connection[pair]
    return bool(not connection.inside and state.message[connection.wire_head].waits_s == 0)


@jit_part
def _lay_route(state: State, number: int, pair: int) -> None:
    """The links that flow `number` crosses."""
    flow, connection = state.flow[number], state.connection[pair]
    own, other = state.node[connection.source], state.node[connection.target]
    flow.hops = 2
    if connection.inside:
        state.route[number, 0], state.route[number, 1] = own.inside_out, other.inside_in
        return
    state.route[number, 0], state.route[number, 1] = own.link_out, other.link_in
    if connection.between_racks:
        state.route[number, 2], state.route[number, 3] = own.uplink_out, other.uplink_in
        flow.hops = 4
    if state.shared[0].backplane >= 0:
        state.route[number, flow.hops] = state.shared[0].backplane
        flow.hops += 1


@jit_part
def latency_of(state: State, pair: int) -> float:
    """Seconds from one end of connection `pair` to the other."""
    return float(state.shared[0].latency_inside if state.connection[pair].inside else state.shared[0].latency)


@jit_part
def seconds_under_way(state: State, message: int, pair: int) -> float:
    """Seconds from the time when the last byte of `message` could leave until it is at the other end of `pair`."""
    return float(latency_of(state, pair) + state.shared[0].message + state.message[message].waits_s)


@jit_part
def end_flow(state: State, which: int, now: float) -> int:
    """Take flow number `which` off the links; returns its message, which arrives later, or -1 if it only pauses."""
    shared, pair = state.shared[0], state.flow[which].pair
    connection = state.connection[pair]
    shared.flowing -= 1
    shared.links_changed = 1
    if connection.bytes_after > 0:
        _take_off(state, which)
        _start_flow_at(state, pair, connection.window_ends, now)
        return -1
    message = connection.wire_head
    connection.wire_head = state.message[message].next
    size, source, target = state.message[message].bytes, connection.source, connection.target
    state.node[source].bytes_out += size
    state.node[target].bytes_in += size
    for hop in range(state.flow[which].hops):
        state.link[state.route[which, hop]].bytes += size
    _take_off(state, which)
    shared.messages += 1
    connection.idle_since = now
    _send_off(state, message, target, now + seconds_under_way(state, message, pair))
    if connection.wire_head >= 0:
        _start_head(state, pair, now)
    return int(message)


@jit_part
def _take_off(state: State, which: int) -> None:
    """Put the last flow in the place of flow number `which`."""
    flow, last = state.flow[which], state.flow[state.shared[0].flowing]
    flow.pair, flow.hops = last.pair, last.hops
    for hop in range(last.hops):
        state.route[which, hop] = state.route[state.shared[0].flowing, hop]


@jit_part
def _send_off(state: State, message: int, target: int, at: float) -> None:
    # Several messages of one operation may be under way; each arrival keeps its own values.
    shared = state.shared[0]
    if shared.arrival_tail - shared.arrival_head == len(state.arrival):
        shared.overflow = 1
        return
    place, size = shared.arrival_tail, len(state.arrival)
    # Only where latencies differ does a message overtake another.
    while at < shared.last_arrival and place > shared.arrival_head and state.arrival[(place - 1) % size].at > at:
        earlier, later = state.arrival[(place - 1) % size], state.arrival[place % size]
        later.message, later.target, later.counts = earlier.message, earlier.target, earlier.counts
        later.at = earlier.at
        place -= 1
    arrival = state.arrival[place % size]
    arrival.message, arrival.target, arrival.counts, arrival.at = message, target, state.message[message].counts, at
    shared.arrival_tail += 1
    shared.last_arrival = max(shared.last_arrival, at)
