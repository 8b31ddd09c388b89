"""The event loop: nodes run their programs over the network until all have reached their end."""

import numpy as np

from istbench.cluster.collectives import (
    advance,
    arrive,
    left,
    ready_transfer,
    start_collectives,
    wake,
)
from istbench.cluster.jit import jit
from istbench.cluster.network import (
    ACTIVE,
    ARRIVAL_HEAD,
    ARRIVAL_TAIL,
    DIRTY,
    LATENCY,
    NEXT_END,
    OVERHEAD_HEAD,
    OVERHEAD_TAIL,
    RUNNABLE,
    SPAN_COMPUTE,
    SPAN_TRANSFER,
    TODO,
    State,
    add_span,
    end_flow,
    fill_window,
    share_links,
    start_flow,
)
from istbench.cluster.program import Ints, Program
from istbench.cluster.trace import AFTER, COMPUTE, POST, RECEIVE, SEND, WAIT


@jit
def simulate(p: Program, s: State, stops: Ints) -> float:
    """Run every node to event number `stops[node]`, and what is on the wire to its end; returns when that is.

    A node that has not got to its stop when this returns waits for something that no node does.
    """
    now = 0.0
    for node in range(p.n):
        wake(s, p.n - 1 - node)
    while True:
        while s.i[RUNNABLE] > 0 or s.i[TODO] > 0:
            if s.i[TODO] > 0:
                s.i[TODO] -= 1
                advance(p, s, s.todo[s.i[TODO]], now)
            else:
                s.i[RUNNABLE] -= 1
                _run(p, s, s.runnable[s.i[RUNNABLE]], stops, now)
        if s.i[DIRTY]:
            share_links(s, p.n, now)
        later = _next_time(p, s)
        if later == np.inf:
            return now
        now = later
        _happen(p, s, now)


@jit
def _next_time(p: Program, s: State) -> float:
    soonest = s.x[NEXT_END] if s.i[ACTIVE] > 0 else np.inf
    for node in range(p.n):
        soonest = min(soonest, s.busy_until[node])
    if s.i[OVERHEAD_HEAD] < s.i[OVERHEAD_TAIL]:
        soonest = min(soonest, s.overhead_until[s.i[OVERHEAD_HEAD] % len(s.waiting_overhead)])
    if s.i[ARRIVAL_HEAD] < s.i[ARRIVAL_TAIL]:
        soonest = min(soonest, s.arrival_at[s.i[ARRIVAL_HEAD] % len(s.arrival_slot)])
    return float(soonest)


@jit
def _happen(p: Program, s: State, now: float) -> None:
    """Everything that is due at `now`, in a fixed order."""
    while s.i[OVERHEAD_HEAD] < s.i[OVERHEAD_TAIL]:
        k = s.i[OVERHEAD_HEAD] % len(s.waiting_overhead)
        if s.overhead_until[k] > now:
            break
        s.i[OVERHEAD_HEAD] += 1
        start_flow(s, s.waiting_overhead[k], now)
    which = 0
    while which < s.i[ACTIVE]:
        pair = s.active[which]
        if s.end[pair] > now:
            which += 1
            continue
        start = s.flow_start[pair]
        slot = end_flow(s, p.n, which, now)
        op = slot % p.ops
        node = pair // p.n
        if len(s.span_what) > 0:
            number, size = op - p.op_base[node], s.message_bytes[slot]
            add_span(s, SPAN_TRANSFER, node, number, pair % p.n, size, start, now + s.x[LATENCY])
        if p.kind[op] == SEND:
            s.in_window[pair] -= 1
            fill_window(s, pair, now)
        left(p, s, slot, now)
    while s.i[ARRIVAL_HEAD] < s.i[ARRIVAL_TAIL]:
        k = s.i[ARRIVAL_HEAD] % len(s.arrival_slot)
        if s.arrival_at[k] > now:
            break
        s.i[ARRIVAL_HEAD] += 1
        arrive(p, s, s.arrival_slot[k] // p.n, s.arrival_slot[k] % p.n, now)
    for node in range(p.n):
        if s.busy_until[node] <= now:
            s.busy_until[node] = np.inf
            wake(s, node)
    for node in range(p.n):
        if s.stalled[node] and _may_enter(p, s, s.repetition[node] + 1):
            s.stalled[node] = 0
            wake(s, node)


@jit
def _may_enter(p: Program, s: State, repetition: int) -> bool:
    """Whether there is room for the operations of `repetition`: those it replaces are done and left behind."""
    place = repetition % len(s.held)
    if p.ops == 0 or s.held[place] == repetition or s.held[place] < 0:
        return True
    if s.open_ops[place] > 0:
        return False
    for node in range(p.n):  # noqa: SIM110  (numba compiles no generators)
        if s.repetition[node] <= s.held[place]:
            return False
    return True


@jit
def _enter(p: Program, s: State, repetition: int) -> None:
    place = repetition % len(s.held)
    if s.held[place] == repetition:
        return
    s.held[place] = repetition
    s.open_ops[place] = p.ops
    for slot in range(place * p.ops, (place + 1) * p.ops):
        s.posted_at[slot] = -1.0
        s.after_head[slot] = -1
        s.ready[slot] = 0
        s.missing[slot] = 0
        s.done[slot] = 0
        s.started[slot] = 0
        s.sending[slot] = 0
        s.sent[slot] = 0
        s.received[slot] = 0


@jit
def _run(p: Program, s: State, node: int, stops: Ints, now: float) -> None:
    """Let `node` go on until it computes, waits or stops."""
    first = p.start[node]
    events = p.start[node + 1] - first
    while s.position[node] < stops[node]:
        at = s.position[node]
        repetition = at // events
        if repetition > s.repetition[node]:
            if not _may_enter(p, s, repetition):
                s.stalled[node] = 1
                return
            _enter(p, s, repetition)
            s.repetition[node] = repetition
        place = repetition % len(s.held)
        event = first + at % events
        s.position[node] = at + 1
        code = p.code[event]
        slot = place * p.ops + p.argument[event]
        if code == COMPUTE:
            if p.seconds[event] > 0:
                s.busy_until[node] = now + p.seconds[event]
                s.spent[node, 0] += p.seconds[event]
                add_span(s, SPAN_COMPUTE, node, -1, -1, 0.0, now, s.busy_until[node])
                return
        elif code == POST:
            _post(p, s, slot, node, now)
        elif code == WAIT:
            if not s.done[slot]:
                s.waits_for[node] = slot
                s.wait_since[node] = now
                return
        elif code == AFTER:
            if not s.done[slot]:
                edge = place * len(p.code) + event
                s.after_next[edge] = s.after_head[slot]
                s.after_head[slot] = edge
                s.missing[place * p.ops + p.owner[event]] += 1
        else:
            k = s.marked[node]
            s.marked[node] = k + 1
            s.mark_at[node, k] = now
            for column in range(3):
                s.mark_spent[node, k, column] = s.spent[node, column]


@jit
def _post(p: Program, s: State, slot: int, node: int, now: float) -> None:
    s.posted_at[slot] = now
    kind = p.kind[slot % p.ops]
    if kind in (SEND, RECEIVE):
        if s.missing[slot] == 0:
            ready_transfer(p, s, slot, now)
    else:
        s.coll_posted[node] += 1
        start_collectives(p, s, node)
