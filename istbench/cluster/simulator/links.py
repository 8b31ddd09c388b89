"""Links of the simulated cluster, and how flowing messages share them.

Every host has a link to a switch. A message to another host crosses the outgoing link of the sender's host and the
incoming link of the receiver's; without full duplex, a host has one link for both ways. A profile may add links:
from each node of a host to the others, an uplink of each rack, up and down, and a backplane that all hosts share.
The switches themselves never block. Flowing messages share the links on their routes. The shares are max-min fair,
like those of TCP connections with equal round-trip times. A link saves unused capacity up to its burst, and has no
limit until that is spent: a token bucket. Store and forward with one message per link would be simpler. But
then peers in rank order queue behind each other, which gloo's concurrent connections do not.
"""

import numpy as np

from istbench.base.jit import jit_part
from istbench.cluster.simulator.processors import pace
from istbench.cluster.simulator.state import State

_A_BYTE = 1.0  # less of a saved burst is none: its parts are rounded
_NO_LIMIT = 1e18  # bytes a second


@jit_part
def share_links(state: State, n: int, now: float) -> None:
    """Give every flow its max-min fair rate: fill all links together until one is full, then continue."""
    shared = state.shared[0]
    shared.links_changed = 0
    for number in range(len(state.link)):
        link = state.link[number]
        link.flows, link.capacity_left = 0, link.capacity
    most = 0
    for number in range(shared.flowing):
        for hop in range(state.flow[number].hops):
            link = state.link[state.route[number, hop]]
            link.flows += 1
            most = max(most, link.flows)
    if shared.burst > 0:
        _spend_bursts(state, now)
    shared.next_end = np.inf
    if most <= 1:
        for number in range(shared.flowing):
            flow = state.flow[number]
            alone = np.inf
            for hop in range(flow.hops):
                alone = min(alone, state.link[state.route[number, hop]].capacity_left)
            _set_rate(state, flow.pair, alone, now)
    else:
        _fill_links(state, now)
    if shared.burst > 0:
        _note_use(state, now)
    if shared.cpu_byte > 0:
        _slow_computing(state, n, now)


@jit_part
def _spend_bursts(state: State, now: float) -> None:
    """Spend at once what all links of a message have saved, max-min fair; lift the limits of links with more."""
    for number in range(len(state.link)):
        link = state.link[number]
        saved = (link.capacity - link.used) * (now - link.since)
        link.burst_left = min(link.burst, max(0.0, link.burst_left + saved))
        link.since = now
    flows = todo = state.shared[0].flowing
    for number in range(flows):
        _begin_rate(state, state.flow[number].pair, 0.0, now)
        state.flow[number].fixed = 0
    while todo > 0:  # all have the same of it, until a message or the savings of a link end
        for number in range(len(state.link)):
            state.link[number].tight = 0
        share = np.inf
        for number in range(flows):
            flow = state.flow[number]
            if not flow.fixed:
                share = min(share, state.connection[flow.pair].bytes_left)
                for hop in range(flow.hops):
                    state.link[state.route[number, hop]].tight += 1
        for number in range(len(state.link)):
            link = state.link[number]
            if link.tight > 0:
                share = min(share, link.burst_left / link.tight)
        for number in range(len(state.link)):
            state.link[number].burst_left -= share * state.link[number].tight
        for number in range(flows):
            flow = state.flow[number]
            if not flow.fixed:
                connection = state.connection[flow.pair]
                connection.bytes_left -= share
                left = connection.bytes_left
                for hop in range(flow.hops):
                    left = min(left, state.link[state.route[number, hop]].burst_left)
                if left < _A_BYTE:
                    flow.fixed = 1
                    todo -= 1
    for number in range(len(state.link)):
        if state.link[number].burst_left >= _A_BYTE:
            state.link[number].capacity_left = _NO_LIMIT


@jit_part
def _note_use(state: State, now: float) -> None:
    """Update the use of each link from now on, and the time when the first has spent its burst."""
    for number in range(len(state.link)):
        state.link[number].used = 0.0
    for number in range(state.shared[0].flowing):
        flow = state.flow[number]
        rate = state.connection[flow.pair].rate
        for hop in range(flow.hops):
            state.link[state.route[number, hop]].used += rate
    for number in range(len(state.link)):
        link = state.link[number]
        if link.burst_left >= _A_BYTE and link.used > link.capacity:
            spent = now + link.burst_left / (link.used - link.capacity)
            spent = max(spent, np.nextafter(now, np.inf))  # after weeks, the shortest time that a float adds
            state.shared[0].next_end = min(state.shared[0].next_end, spent)


@jit_part
def _slow_computing(state: State, n: int, now: float) -> None:
    """Update the computing time that flowing messages take from each node from `now` on."""
    for rank in range(n):
        state.node[rank].sending = state.node[rank].receiving = 0.0
    for number in range(state.shared[0].flowing):
        connection = state.connection[state.flow[number].pair]
        state.node[connection.source].sending += connection.rate
        state.node[connection.target].receiving += connection.rate
    for rank in range(n):
        node = state.node[rank]
        node.carrying = state.shared[0].cpu_byte * (node.sending + node.receiving)
        pace(state, rank, now)


@jit_part
def _fill_links(state: State, now: float) -> None:
    flows = todo = state.shared[0].flowing
    for number in range(flows):
        state.flow[number].fixed = 0
    while todo > 0:
        share = np.inf
        for number in range(len(state.link)):
            link = state.link[number]
            if link.flows > 0:
                share = min(share, link.capacity_left / link.flows)
        for number in range(len(state.link)):
            link = state.link[number]
            link.tight = 1 if link.flows > 0 and link.capacity_left / link.flows <= share * (1 + 1e-12) else 0
        for number in range(flows):
            flow = state.flow[number]
            tight = 0
            for hop in range(flow.hops):
                tight |= state.link[state.route[number, hop]].tight
            if not flow.fixed and tight:
                flow.fixed = 1
                todo -= 1
                for hop in range(flow.hops):
                    link = state.link[state.route[number, hop]]
                    link.flows -= 1
                    link.capacity_left -= share
                _set_rate(state, flow.pair, share, now)


@jit_part
def _set_rate(state: State, pair: int, rate: float, now: float) -> None:
    shared, connection = state.shared[0], state.connection[pair]
    if rate != connection.rate:
        _begin_rate(state, pair, rate, now)
        connection.end = now + connection.bytes_left / rate
    shared.next_end = min(shared.next_end, connection.end)


@jit_part
def _begin_rate(state: State, pair: int, rate: float, now: float) -> None:
    """Count what a message has sent until `now`; from now on it has another rate."""
    connection = state.connection[pair]
    connection.bytes_left = max(0.0, connection.bytes_left - connection.rate * (now - connection.since))
    connection.since, connection.rate = now, rate
