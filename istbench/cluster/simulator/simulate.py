"""The event loop: nodes run their programs over the network until all have reached their end."""

import numpy as np

from istbench.cluster.simulator.jit import jit
from istbench.cluster.simulator.network import add_span, end_flow, fill_window, share_links, start_flow
from istbench.cluster.simulator.operations import advance, arrive, left, ready_transfer, start_collectives, wake
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import SPAN_COMPUTE, SPAN_TRANSFER, State
from istbench.cluster.trace import AFTER, COMPUTE, POST, RECEIVE, SEND, WAIT, Ints


@jit
def simulate(p: Program, s: State, stops: Ints) -> float:
    """Run every node to event number `stops[node]`, and what is on the wire to its end; returns when that is.

    A node that has not got to its stop when this returns waits for something that no node does.
    """
    now = 0.0
    shared = s.shared[0]
    for node in range(p.n):
        wake(s, p.n - 1 - node)
    while True:
        while shared.runnable > 0 or shared.todo > 0:
            if shared.todo > 0:
                shared.todo -= 1
                advance(p, s, s.todo[shared.todo], now)
            else:
                shared.runnable -= 1
                _run(p, s, s.runnable[shared.runnable], stops, now)
        if shared.links_changed:
            share_links(s, p.n, now)
        later = _next_time(p, s)
        if later == np.inf:
            return now
        now = later
        _happen(p, s, now)


@jit
def _next_time(p: Program, s: State) -> float:
    shared = s.shared[0]
    soonest = shared.next_end if shared.flowing > 0 else np.inf
    for node in range(p.n):
        soonest = min(soonest, s.node[node].busy_until)
    if shared.overhead_head < shared.overhead_tail:
        soonest = min(soonest, s.overhead[shared.overhead_head % len(s.overhead)].until)
    if shared.arrival_head < shared.arrival_tail:
        soonest = min(soonest, s.arrival[shared.arrival_head % len(s.arrival)].at)
    return float(soonest)


@jit
def _happen(p: Program, s: State, now: float) -> None:
    """Everything that is due at `now`, in a fixed order."""
    shared = s.shared[0]
    while shared.overhead_head < shared.overhead_tail:
        waiting = s.overhead[shared.overhead_head % len(s.overhead)]
        if waiting.until > now:
            break
        shared.overhead_head += 1
        start_flow(s, waiting.pair, now)
    if shared.next_end <= now:
        _end_flows(p, s, now)
    while shared.arrival_head < shared.arrival_tail:
        arrival = s.arrival[shared.arrival_head % len(s.arrival)]
        if arrival.at > now:
            break
        shared.arrival_head += 1
        arrive(p, s, arrival.slot, arrival.target, arrival.counts, now)
    for number in range(p.n):
        node = s.node[number]
        if node.busy_until <= now:
            node.busy_until = np.inf
            wake(s, number)
        if node.stalled and _may_enter(p, s, node.repetition + 1):
            node.stalled = 0
            wake(s, number)


@jit
def _end_flows(p: Program, s: State, now: float) -> None:
    which = 0
    while which < s.shared[0].flowing:
        pair = s.flow[which].pair
        connection = s.connection[pair]
        if connection.end > now:
            which += 1
            continue
        start = connection.flow_start
        slot = end_flow(s, p.n, which, now)
        number = slot % p.ops
        node = pair // p.n
        if len(s.span) > 0:
            op, arrives = number - p.op_base[node], now + s.shared[0].latency
            add_span(s, SPAN_TRANSFER, node, op, pair % p.n, s.slot[slot].bytes, start, arrives)
        if p.op[number].kind == SEND:
            connection.in_window -= 1
            fill_window(s, pair, now)
        left(p, s, slot, now)


@jit
def _may_enter(p: Program, s: State, number: int) -> bool:
    """Whether there is room for the operations of repetition `number`: those it replaces are done and left."""
    place = s.repetition[number % len(s.repetition)]
    if p.ops == 0 or place.number == number or place.number < 0:
        return True
    if place.open_ops > 0:
        return False
    for node in range(p.n):  # noqa: SIM110  (numba compiles no generators)
        if s.node[node].repetition <= place.number:
            return False
    return True


@jit
def _enter(p: Program, s: State, number: int) -> None:
    place = number % len(s.repetition)
    if s.repetition[place].number == number:
        return
    s.repetition[place].number = number
    s.repetition[place].open_ops = p.ops
    for k in range(place * p.ops, (place + 1) * p.ops):
        slot = s.slot[k]
        slot.posted_at = -1.0
        slot.after_head = -1
        slot.ready = slot.missing = slot.done = slot.started = slot.sending = slot.sent = slot.received = 0


@jit
def _run(p: Program, s: State, number: int, stops: Ints, now: float) -> None:
    """Let node `number` go on until it computes, waits or stops."""
    node = s.node[number]
    first = p.start[number]
    events = p.start[number + 1] - first
    while node.position < stops[number]:
        at = node.position
        repetition = at // events
        if repetition > node.repetition:
            if not _may_enter(p, s, repetition):
                node.stalled = 1
                return
            _enter(p, s, repetition)
            node.repetition = repetition
        place = repetition % len(s.repetition)
        k = first + at % events
        event = p.event[k]
        node.position = at + 1
        slot = place * p.ops + event.argument
        if event.code == COMPUTE:
            if event.seconds > 0:
                node.busy_until = now + event.seconds
                s.spent[number, SPAN_COMPUTE] += event.seconds
                add_span(s, SPAN_COMPUTE, number, -1, -1, 0.0, now, node.busy_until)
                return
        elif event.code == POST:
            _post(p, s, slot, number, now)
        elif event.code == WAIT:
            if not s.slot[slot].done:
                node.waits_for = slot
                node.wait_since = now
                return
        elif event.code == AFTER:
            if not s.slot[slot].done:
                edge = place * len(p.event) + k
                s.after_next[edge] = s.slot[slot].after_head
                s.slot[slot].after_head = edge
                s.slot[place * p.ops + event.owner].missing += 1
        else:
            s.mark_at[number, node.marks] = now
            for column in range(3):
                s.mark_spent[number, node.marks, column] = s.spent[number, column]
            node.marks += 1


@jit
def _post(p: Program, s: State, slot: int, node: int, now: float) -> None:
    s.slot[slot].posted_at = now
    kind = p.op[slot % p.ops].kind
    if kind in (SEND, RECEIVE):
        if s.slot[slot].missing == 0:
            ready_transfer(p, s, slot, now)
    else:
        s.node[node].collectives_posted += 1
        start_collectives(p, s, node)
