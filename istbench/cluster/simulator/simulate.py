"""The event loop: nodes run their programs over the network until all have reached their end."""

from collections.abc import Callable
from typing import Any

import numpy as np

from istbench.base.jit import compiler_is_loaded, is_compiled, jit_part, jit_whole
from istbench.cluster.simulator.connections import add_span, end_flow, fill_window, seconds_under_way, start_flow
from istbench.cluster.simulator.links import share_links
from istbench.cluster.simulator.operations import (
    advance,
    complete,
    message_arrived,
    message_left,
    ready,
    send_next,
    start_collectives,
    wake,
)
from istbench.cluster.simulator.processors import carry_message, compute, next_work, pace
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import SPAN_COMPUTE, SPAN_MESSAGE, State
from istbench.cluster.trace import AFTER, COMPUTE, MARK, POST, RECEIVE, SEND, WAIT, WAIT_BEFORE, WORK, Ints

# Events and messages so far:
_MOST_INTERPRETED = 15_000  # they take Python some seconds
_SOONER_INTERPRETED = 1_000  # they take Python less time than it takes to load what is compiled


class Simulation:
    """Chooses between `simulate` compiled and interpreted.

    Compiling takes some 15 seconds, once on a machine. Before that, the first steps are interpreted.
    """

    def __init__(self) -> None:
        self._steps = 0

    def __call__(self, steps: int) -> Callable[[Program, State, Ints], float]:
        """`simulate` for this many more `steps`, which are events and messages."""
        self._steps += steps
        if self._steps <= _SOONER_INTERPRETED and not compiler_is_loaded():
            return simulate_interpreted
        compiled = jit_whole(simulate)
        return compiled if self._steps > _MOST_INTERPRETED or is_compiled(compiled) else simulate_interpreted


simulation = Simulation()
"""That of all replays of a process."""


def compiles() -> bool:
    """Whether long replays of this process compile, since no earlier one on this machine has."""
    return compiler_is_loaded() and not is_compiled(jit_whole(simulate))


def simulate_interpreted(program: Program, state: State, stops: Ints) -> float:
    """`simulate` in Python, which reads fields as attributes in numpy's own class of records only."""
    return simulate(Program(*map(_with_attributes, program)), State(*map(_with_attributes, state)), stops)


def _with_attributes(value: Any) -> Any:
    return value.view(np.recarray) if isinstance(value, np.ndarray) and value.dtype.names else value


def simulate(program: Program, state: State, stops: Ints) -> float:
    """Run every node to event number `stops[rank]`, and all messages to their end; returns the time of the end.

    A node that has not reached its stop waits for an operation that never ends. Or more messages were under way
    than the state has room for (`shared.overflow`): then the caller repeats the simulation with more room.
    """
    now = 0.0
    shared = state.shared[0]
    for rank in range(program.n):
        wake(state, program.n - 1 - rank)
    while not shared.overflow:
        while shared.runnable > 0 or shared.todo > 0 or (shared.stalled > 0 and _enter_next(program, state)):
            if shared.todo > 0:
                shared.todo -= 1
                advance(program, state, state.todo[shared.todo], now)
            else:
                shared.runnable -= 1
                _run(program, state, state.runnable[shared.runnable], stops, now)
        while shared.senders > 0:
            shared.senders -= 1
            send_next(program, state, state.sender[shared.senders], now)
        if shared.links_changed:
            share_links(state, program.n, now)
        later = _next_time(program, state)
        if later == np.inf:
            return now
        now = later
        _happen(program, state, now)
    return now


@jit_part
def _next_time(program: Program, state: State) -> float:
    shared = state.shared[0]
    shared.next_computed = np.inf
    for rank in range(program.n):
        shared.next_computed = min(shared.next_computed, state.node[rank].busy_until, state.node[rank].work_until)
    soonest = min(shared.next_computed, shared.next_end if shared.flowing > 0 else np.inf)
    if shared.overhead_head < shared.overhead_tail:
        soonest = min(soonest, state.overhead[shared.overhead_head % len(state.overhead)].until)
    if shared.arrival_head < shared.arrival_tail:
        soonest = min(soonest, state.arrival[shared.arrival_head % len(state.arrival)].at)
    return float(soonest)


@jit_part
def _happen(program: Program, state: State, now: float) -> None:
    """Process everything due at `now`, in a fixed order."""
    shared = state.shared[0]
    while shared.overhead_head < shared.overhead_tail:
        waiting = state.overhead[shared.overhead_head % len(state.overhead)]
        if waiting.until > now:
            break
        shared.overhead_head += 1
        start_flow(state, waiting.pair, now)
    if shared.next_end <= now:
        shared.links_changed = 1  # a burst may be spent
        _end_flows(program, state, now)
    while shared.arrival_head < shared.arrival_tail:
        arrival = state.arrival[shared.arrival_head % len(state.arrival)]
        if arrival.at > now:
            break
        shared.arrival_head += 1
        if shared.cpu_message > 0:
            carry_message(state, arrival.target)
        message_arrived(program, state, arrival.message // shared.at_once, arrival.target, arrival.counts, now)
    if shared.next_computed <= now:
        for rank in range(program.n):
            _end_computing(program, state, rank, now)


@jit_part
def _end_computing(program: Program, state: State, rank: int, now: float) -> None:
    """End the computing and the work of node `rank` that are due."""
    node = state.node[rank]
    if node.busy_until <= now:
        node.busy_until = np.inf
        state.spent[rank, SPAN_COMPUTE] += now - node.started
        add_span(state, SPAN_COMPUTE, rank, -1, -1, 0.0, node.started, now)
        wake(state, rank)
        pace(state, rank, now)
    if node.work_until <= now:
        slot = node.working
        next_work(program, state, rank, now)
        complete(program, state, slot, now)


@jit_part
def _end_flows(program: Program, state: State, now: float) -> None:
    which = 0
    while which < state.shared[0].flowing:
        pair = state.flow[which].pair
        connection = state.connection[pair]
        if connection.end > now:
            which += 1
            continue
        start = connection.flow_start
        message = end_flow(state, which, now)
        if message < 0:
            continue
        slot = message // state.shared[0].at_once
        if state.shared[0].cpu_message > 0:
            carry_message(state, connection.source)
        number = slot % program.ops
        if len(state.span) > 0:
            rank, peer = connection.source, connection.target
            op, arrives = number - program.op_base[rank], now + seconds_under_way(state, message, pair)
            add_span(state, SPAN_MESSAGE, rank, op, peer, state.message[message].bytes, start, arrives)
        if program.op[number].kind == SEND:
            connection.in_window -= 1
            fill_window(state, pair, now)
        message_left(program, state, slot, now)


@jit_part
def _enter_next(program: Program, state: State) -> bool:
    """Wake the stalled nodes whose next repetition has room; returns whether any node can run."""
    shared = state.shared[0]
    for rank in range(program.n):
        node = state.node[rank]
        if node.stalled and _may_enter(program, state, node.repetition + 1):
            node.stalled = 0
            shared.stalled -= 1
            wake(state, rank)
    return bool(shared.runnable > 0)


@jit_part
def _may_enter(program: Program, state: State, number: int) -> bool:
    """Whether repetition `number` has room: all operations that it replaces are done, and no node needs them.

    A node may wait for operations of the repetition before its own.
    """
    replaced = state.repetition[number % len(state.repetition)]
    if program.ops == 0 or replaced.number == number or replaced.number < 0:
        return True
    if replaced.open_ops > 0:
        return False
    for rank in range(program.n):  # numba compiles no generators
        if state.node[rank].repetition <= replaced.number + state.shared[0].looks_back:
            return False
    return True


@jit_part
def _enter(program: Program, state: State, number: int) -> None:
    place = number % len(state.repetition)
    if state.repetition[place].number == number:
        return
    state.repetition[place].number = number
    state.repetition[place].open_ops = program.ops
    for slot in range(place * program.ops, (place + 1) * program.ops):
        own = state.slot[slot]
        own.posted_at = -1.0
        own.after_head = -1
        own.ready = own.missing = own.done = own.started = own.sending = own.sent = own.received = 0
        for message in range(slot * state.shared[0].at_once, (slot + 1) * state.shared[0].at_once):
            state.message[message].begun = 0


@jit_part
def _run(program: Program, state: State, rank: int, stops: Ints, now: float) -> None:
    """Run node `rank` until it computes, waits or stops."""
    node = state.node[rank]
    first = program.start[rank]
    events = program.start[rank + 1] - first
    while node.position < stops[rank]:
        repetition, at = divmod(node.position, events)
        if repetition > node.repetition:
            if not _may_enter(program, state, repetition):
                node.stalled = 1
                state.shared[0].stalled += 1
                return
            _enter(program, state, repetition)
            node.repetition = repetition
        place = repetition % len(state.repetition)
        event = program.event[first + at]
        node.position += 1
        slot = place * program.ops + event.argument
        if event.code == COMPUTE:
            if event.seconds > 0:
                compute(state, rank, event.seconds, now)
                return
        elif event.code == POST:
            _post(program, state, slot, rank, now)
        elif event.code == WAIT or event.code == WAIT_BEFORE:
            if event.code == WAIT_BEFORE:
                if repetition == 0:
                    continue  # nothing is under way when a replay begins
                slot = (repetition - 1) % len(state.repetition) * program.ops + event.argument
            if not state.slot[slot].done:
                node.waits_for = slot
                node.wait_since = now
                return
        elif event.code == AFTER:
            if not state.slot[slot].done:
                edge = place * len(program.event) + first + at
                state.after_next[edge] = state.slot[slot].after_head
                state.slot[slot].after_head = edge
                state.slot[place * program.ops + event.owner].missing += 1
        elif event.code == MARK:
            state.mark_at[rank, node.marks] = now
            for column in range(3):
                state.mark_spent[rank, node.marks, column] = state.spent[rank, column]
            node.marks += 1


@jit_part
def _post(program: Program, state: State, slot: int, rank: int, now: float) -> None:
    state.slot[slot].posted_at = now
    kind = program.op[slot % program.ops].kind
    if kind in (SEND, RECEIVE, WORK):
        if state.slot[slot].missing == 0:
            ready(program, state, slot, now)
    else:
        state.node[rank].collectives_posted += 1
        start_collectives(program, state, rank)
