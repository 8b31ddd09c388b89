"""Links, connections and messages of the simulated cluster.

The model: nodes hang on a switch that never blocks. Every ordered pair of nodes has one connection, first in
first out, one message on the wire at a time; before its bytes flow a message holds it for `overhead` seconds.
The messages flowing share the links they cross (the sender's outgoing, the receiver's incoming; one for both
where not full duplex) max-min fairly, as TCP connections of equal round-trip time do. The last byte arrives
`latency` seconds after it left. Store and forward, one message a link, would be simpler, but makes peers that are
served in rank order queue up behind each other, which gloo's concurrent connections do not.
Sends wait in a priority queue before their connection, which holds `window` of them and never reorders those.
"""

import numpy as np

from istbench.cluster.simulator.jit import jit
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import State


@jit
def add_span(s: State, kind: int, node: int, op: int, peer: int, size: float, start: float, end: float) -> None:
    shared = s.shared[0]
    if shared.spans < len(s.span):
        span = s.span[shared.spans]
        span.kind, span.node, span.op, span.peer = kind, node, op, peer
        span.start, span.end, span.bytes = start, end, size
        shared.spans += 1


@jit
def queue_send(p: Program, s: State, slot: int, now: float) -> None:
    """A send whose two ends are ready: into the priority queue of its connection, behind its equals."""
    op = p.op[slot % p.ops]
    pair = op.node * p.n + op.peer
    connection = s.connection[pair]
    s.slot[slot].bytes = op.bytes
    s.slot[slot].next = -1
    if connection.queue_head < 0:
        connection.queue_head = connection.queue_tail = slot
    elif p.op[connection.queue_tail % p.ops].priority <= op.priority:
        s.slot[connection.queue_tail].next = slot
        connection.queue_tail = slot
    else:
        before, at = -1, connection.queue_head
        while at >= 0 and p.op[at % p.ops].priority <= op.priority:
            before, at = at, s.slot[at].next
        s.slot[slot].next = at
        if before < 0:
            connection.queue_head = slot
        else:
            s.slot[before].next = slot
    fill_window(s, pair, now)


@jit
def fill_window(s: State, pair: int, now: float) -> None:
    connection = s.connection[pair]
    while connection.in_window < s.shared[0].window and connection.queue_head >= 0:
        slot = connection.queue_head
        connection.queue_head = s.slot[slot].next
        if connection.queue_head < 0:
            connection.queue_tail = -1
        connection.in_window += 1
        put_on_wire(s, pair, slot, now)


@jit
def put_on_wire(s: State, pair: int, slot: int, now: float) -> None:
    """Commit a message to its connection, behind what is there."""
    connection = s.connection[pair]
    s.slot[slot].next = -1
    if connection.wire_head < 0:
        connection.wire_head = connection.wire_tail = slot
        _start_head(s, pair, now)
    else:
        s.slot[connection.wire_tail].next = slot
        connection.wire_tail = slot


@jit
def _start_head(s: State, pair: int, now: float) -> None:
    shared = s.shared[0]
    s.connection[pair].flow_start = now
    if shared.overhead > 0:
        waiting = s.overhead[shared.overhead_tail % len(s.overhead)]
        waiting.pair, waiting.until = pair, now + shared.overhead
        shared.overhead_tail += 1
    else:
        start_flow(s, pair, now)


@jit
def start_flow(s: State, pair: int, now: float) -> None:
    shared, connection = s.shared[0], s.connection[pair]
    s.flow[shared.flowing].pair = pair
    shared.flowing += 1
    shared.links_changed = 1
    connection.left = s.slot[connection.wire_head].bytes
    connection.rate = 0.0
    connection.since = now
    connection.end = now if connection.left <= 0 else np.inf


@jit
def end_flow(s: State, n: int, which: int, now: float) -> int:
    """Take flow number `which` off the wire; returns its slot, on its way to arrive."""
    shared, pair = s.shared[0], s.flow[which].pair
    connection = s.connection[pair]
    shared.flowing -= 1
    s.flow[which].pair = s.flow[shared.flowing].pair
    shared.links_changed = 1
    shared.transfers += 1
    slot = connection.wire_head
    connection.wire_head = s.slot[slot].next
    s.node[pair // n].bytes_out += s.slot[slot].bytes
    s.node[pair % n].bytes_in += s.slot[slot].bytes
    _send_off(s, slot, pair % n, now + shared.latency)
    if connection.wire_head >= 0:
        _start_head(s, pair, now)
    return int(slot)


@jit
def _send_off(s: State, slot: int, target: int, at: float) -> None:
    # An operation may have several messages under way: what differs is kept with the message.
    shared = s.shared[0]
    arrival = s.arrival[shared.arrival_tail % len(s.arrival)]
    arrival.slot, arrival.target, arrival.counts, arrival.at = slot, target, s.slot[slot].counts, at
    shared.arrival_tail += 1


@jit
def share_links(s: State, n: int, now: float) -> None:
    """Give every flow its max-min fair rate, by filling all links at once until one is full, and so on."""
    shared = s.shared[0]
    shared.links_changed = 0
    flows, shift = shared.flowing, n if shared.duplex else 0
    links = n + shift
    for number in range(links):
        s.link[number].flows = 0
    most = 0
    for number in range(flows):
        pair = s.flow[number].pair
        out, into = s.link[pair // n], s.link[pair % n + shift]
        out.flows += 1
        into.flows += 1
        most = max(most, out.flows, into.flows)
    shared.next_end = np.inf
    if most <= 1:
        alone = min(shared.capacity_out, shared.capacity_in)
        for number in range(flows):
            _set_rate(s, s.flow[number].pair, alone, now)
    else:
        _fill_links(s, n, links, shift, now)


@jit
def _fill_links(s: State, n: int, links: int, shift: int, now: float) -> None:
    shared = s.shared[0]
    flows = todo = shared.flowing
    for number in range(links):
        s.link[number].left = shared.capacity_out if number < n else shared.capacity_in
    for number in range(flows):
        s.flow[number].fixed = 0
    while todo > 0:
        share = np.inf
        for number in range(links):
            link = s.link[number]
            if link.flows > 0:
                share = min(share, link.left / link.flows)
        for number in range(links):
            link = s.link[number]
            link.tight = 1 if link.flows > 0 and link.left / link.flows <= share * (1 + 1e-12) else 0
        for number in range(flows):
            flow = s.flow[number]
            out, into = s.link[flow.pair // n], s.link[flow.pair % n + shift]
            if not flow.fixed and (out.tight or into.tight):
                flow.fixed = 1
                todo -= 1
                for link in (out, into):
                    link.flows -= 1
                    link.left -= share
                _set_rate(s, flow.pair, share, now)


@jit
def _set_rate(s: State, pair: int, rate: float, now: float) -> None:
    shared, connection = s.shared[0], s.connection[pair]
    if rate != connection.rate:
        connection.left = max(0.0, connection.left - connection.rate * (now - connection.since))
        connection.since = now
        connection.rate = rate
        connection.end = now + connection.left / rate
    shared.next_end = min(shared.next_end, connection.end)
