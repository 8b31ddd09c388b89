"""Links of the simulated cluster, and how flowing messages share them.

Nodes are connected to a switch that never blocks. Flowing messages share the links that they cross: the outgoing
link of the sender and the incoming link of the receiver, or one link for both without full duplex. The shares are
max-min fair, like those of TCP connections with equal round-trip times. A link saves unused capacity up to `burst`,
and the next message gets it at once: a token bucket. Store and forward with one message per link would be simpler.
But then peers in rank order queue behind each other, which gloo's concurrent connections do not.
"""

import numpy as np

from istbench.cluster.simulator.processors import pace
from istbench.cluster.simulator.state import State
from istbench.jit import jit_part


@jit_part
def share_links(state: State, n: int, now: float) -> None:
    """Give every flow its max-min fair rate: fill all links together until one is full, then continue."""
    shared = state.shared[0]
    shared.links_changed = 0
    flows, shift = shared.flowing, n if shared.duplex else 0
    links = n + shift
    for number in range(links):
        state.link[number].flows = 0
    most = 0
    for number in range(flows):
        connection = state.connection[state.flow[number].pair]
        out, into = state.link[connection.source], state.link[connection.target + shift]
        out.flows += 1
        into.flows += 1
        most = max(most, out.flows, into.flows)
    if shared.burst > 0:
        _spend_bursts(state, n, links, shift, now)
    shared.next_end = np.inf
    if most <= 1:
        alone = min(shared.capacity_out, shared.capacity_in)
        for number in range(flows):
            _set_rate(state, state.flow[number].pair, alone, now)
    else:
        _fill_links(state, n, links, shift, now)
    if shared.burst > 0 or shared.cpu_byte > 0:
        _note_use(state, n, links, shift, now)


@jit_part
def _spend_bursts(state: State, n: int, links: int, shift: int, now: float) -> None:
    """Spend the saved capacity of links on the messages that start now."""
    shared = state.shared[0]
    for number in range(links):
        link = state.link[number]
        capacity = shared.capacity_out if number < n else shared.capacity_in
        link.burst_left = min(shared.burst, link.burst_left + max(0.0, capacity - link.used) * (now - link.since))
        link.since = now
    for number in range(shared.flowing):
        connection = state.connection[state.flow[number].pair]
        if connection.rate == 0:
            out, into = state.link[connection.source], state.link[connection.target + shift]
            at_once = min(connection.bytes_left, out.burst_left, into.burst_left)
            connection.bytes_left -= at_once
            out.burst_left -= at_once
            if shift:
                into.burst_left -= at_once


@jit_part
def _note_use(state: State, n: int, links: int, shift: int, now: float) -> None:
    """Update the use of each link from `now` on, and the computing time that its messages take."""
    shared = state.shared[0]
    for number in range(links):
        state.link[number].used = 0.0
    for number in range(shared.flowing):
        connection = state.connection[state.flow[number].pair]
        state.link[connection.source].used += connection.rate
        state.link[connection.target + shift].used += connection.rate
    for rank in range(n):
        both_ways = state.link[rank].used + (state.link[rank + n].used if shift else 0.0)
        state.node[rank].carrying = shared.cpu_byte * both_ways
        pace(state, rank, now)


@jit_part
def _fill_links(state: State, n: int, links: int, shift: int, now: float) -> None:
    shared = state.shared[0]
    flows = todo = shared.flowing
    for number in range(links):
        state.link[number].capacity_left = shared.capacity_out if number < n else shared.capacity_in
    for number in range(flows):
        state.flow[number].fixed = 0
    while todo > 0:
        share = np.inf
        for number in range(links):
            link = state.link[number]
            if link.flows > 0:
                share = min(share, link.capacity_left / link.flows)
        for number in range(links):
            link = state.link[number]
            link.tight = 1 if link.flows > 0 and link.capacity_left / link.flows <= share * (1 + 1e-12) else 0
        for number in range(flows):
            flow = state.flow[number]
            connection = state.connection[flow.pair]
            out, into = state.link[connection.source], state.link[connection.target + shift]
            if not flow.fixed and (out.tight or into.tight):
                flow.fixed = 1
                todo -= 1
                for link in (out, into):
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
