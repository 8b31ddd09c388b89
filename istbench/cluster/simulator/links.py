"""Links of the simulated cluster, and how flowing messages share them.

Every host has a link to a switch. A message to another host crosses the outgoing link of the sender's host and the
incoming link of the receiver's; without full duplex, a host has one link for both ways. A profile may add links:
from each node of a host to the others, an uplink of each rack, up and down, and a backplane that all hosts share.
The switches themselves never block. Flowing messages share the links on their routes. The shares are max-min fair,
like those of TCP connections with equal round-trip times. A link saves unused capacity up to its burst, and the
next message gets it at once: a token bucket. Store and forward with one message per link would be simpler. But
then peers in rank order queue behind each other, which gloo's concurrent connections do not.
"""

import numpy as np

from istbench.base.jit import jit_part
from istbench.cluster.simulator.processors import pace
from istbench.cluster.simulator.state import State


@jit_part
def share_links(state: State, n: int, now: float) -> None:
    """Give every flow its max-min fair rate: fill all links together until one is full, then continue."""
    shared = state.shared[0]
    shared.links_changed = 0
    for number in range(len(state.link)):
        state.link[number].flows = 0
    most = 0
    for number in range(shared.flowing):
        flow = state.flow[number]
        out, into = state.link[flow.out], state.link[flow.into]
        out.flows += 1
        into.flows += 1
        most = max(most, out.flows, into.flows)
        for hop in range(flow.more):
            link = state.link[state.route[number, hop]]
            link.flows += 1
            most = max(most, link.flows)
    if shared.burst > 0:
        _spend_bursts(state, now)
    shared.next_end = np.inf
    if most <= 1:
        for number in range(shared.flowing):
            flow = state.flow[number]
            alone = min(state.link[flow.out].capacity, state.link[flow.into].capacity)
            for hop in range(flow.more):
                alone = min(alone, state.link[state.route[number, hop]].capacity)
            _set_rate(state, flow.pair, alone, now)
    else:
        _fill_links(state, now)
    if shared.burst > 0:
        _note_use(state)
    if shared.cpu_byte > 0:
        _slow_computing(state, n, now)


@jit_part
def _spend_bursts(state: State, now: float) -> None:
    """Spend the saved capacity of links on the messages that start now."""
    for number in range(len(state.link)):
        link = state.link[number]
        saved = max(0.0, link.capacity - link.used) * (now - link.since)
        link.burst_left = min(link.burst, link.burst_left + saved)
        link.since = now
    for number in range(state.shared[0].flowing):
        flow = state.flow[number]
        connection = state.connection[flow.pair]
        if connection.rate == 0:
            out, into = state.link[flow.out], state.link[flow.into]
            at_once = min(connection.bytes_left, out.burst_left, into.burst_left)
            for hop in range(flow.more):
                at_once = min(at_once, state.link[state.route[number, hop]].burst_left)
            connection.bytes_left -= at_once
            out.burst_left -= at_once
            into.burst_left -= at_once
            for hop in range(flow.more):
                state.link[state.route[number, hop]].burst_left -= at_once


@jit_part
def _note_use(state: State) -> None:
    """Update the use of each link from now on."""
    for number in range(len(state.link)):
        state.link[number].used = 0.0
    for number in range(state.shared[0].flowing):
        flow = state.flow[number]
        rate = state.connection[flow.pair].rate
        state.link[flow.out].used += rate
        state.link[flow.into].used += rate
        for hop in range(flow.more):
            state.link[state.route[number, hop]].used += rate


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
    for number in range(len(state.link)):
        state.link[number].capacity_left = state.link[number].capacity
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
            out, into = state.link[flow.out], state.link[flow.into]
            tight = out.tight | into.tight
            for hop in range(flow.more):
                tight |= state.link[state.route[number, hop]].tight
            if not flow.fixed and tight:
                flow.fixed = 1
                todo -= 1
                for link in (out, into):
                    link.flows -= 1
                    link.capacity_left -= share
                for hop in range(flow.more):
                    link = state.link[state.route[number, hop]]
                    link.flows -= 1
                    link.capacity_left -= share
                _set_rate(state, flow.pair, share, now)


@jit_part
def _set_rate(state: State, pair: int, rate: float, now: float) -> None:
    shared, connection = state.shared[0], state.connection[pair]
    if rate != connection.rate:
        connection.bytes_left = max(0.0, connection.bytes_left - connection.rate * (now - connection.since))
        connection.since = now
        connection.rate = rate
        connection.end = now + connection.bytes_left / rate
    shared.next_end = min(shared.next_end, connection.end)
