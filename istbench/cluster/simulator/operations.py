"""Operations from post to completion: transfers between two nodes, collectives, and work.

`streams` collectives of a node run at once, started in posted order; `cluster.collectives` has their messages.
Those in turns over the fabric's transport take no stream.
"""

import numpy as np

from istbench.base.jit import jit_part
from istbench.cluster.simulator.connections import add_span, latency_of, put_on_wire, queue_send
from istbench.cluster.simulator.processors import queue_work
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import SPAN_COMMUNICATION, SPAN_COMPUTE, SPAN_IDLE, State
from istbench.cluster.trace import SEND, WORK

_FEWEST_SEGMENTS = 2  # of a message of an all-reduce by gloo
# Share of a segment's time on the link that overlaps with the wait of another one, between more than two nodes: .29
# to .32 in a lab of 3 and 4 nodes, 10 and 25 ms, 300 Mbit/s and 1 Gbit/s.
_OVERLAP = 0.3


@jit_part
def remember(state: State, slot: int) -> None:
    """Check this collective again before time advances."""
    if not state.slot[slot].in_todo:
        state.slot[slot].in_todo = 1
        state.todo[state.shared[0].todo] = slot
        state.shared[0].todo += 1


@jit_part
def wake(state: State, rank: int) -> None:
    state.runnable[state.shared[0].runnable] = rank
    state.shared[0].runnable += 1


@jit_part
def ready(program: Program, state: State, slot: int, now: float) -> None:
    """Work may start, or one end of a transfer. A transfer starts when both ends may."""
    number = slot % program.ops
    op = program.op[number]
    if op.kind == WORK:
        queue_work(program, state, slot, now)
        return
    other = slot - number + op.partner
    state.slot[slot].ready = 1
    if state.slot[other].ready:
        queue_send(program, state, slot if op.kind == SEND else other, now)


@jit_part
def start_collectives(program: Program, state: State, rank: int) -> None:
    """Start the posted collectives of node `rank`, as far as its streams allow."""
    collectives = len(program.members)
    node = state.node[rank]
    while node.collectives_started < node.collectives_posted:
        repetition, number = divmod(node.collectives_started, collectives)
        base = repetition % len(state.repetition) * program.ops
        streams = program.op[program.members[number, rank]].streams
        if node.collectives_running + streams > state.shared[0].streams:
            return
        node.collectives_started += 1
        node.collectives_running += streams
        state.slot[base + program.members[number, rank]].started = 1
        for member in program.members[number]:
            if state.slot[base + member].started:
                remember(state, base + member)


@jit_part
def advance(program: Program, state: State, slot: int, now: float) -> None:
    """Finish collective `slot` on its node if possible; otherwise let it send once nothing else can happen."""
    own = state.slot[slot]
    op = program.op[slot % program.ops]
    if not own.started or own.done or (own.sending and not op.at_once):
        own.in_todo = 0
    elif own.sent == op.messages:
        own.in_todo = 0
        if own.received == op.awaits and not own.sending:
            state.node[op.node].collectives_running -= op.streams
            complete(program, state, slot, now)
            start_collectives(program, state, op.node)
    else:
        _queue_to_send(program, state, slot)


@jit_part
def _queue_to_send(program: Program, state: State, slot: int) -> None:
    """Put a collective into the queue of its node, behind collectives that the node posted earlier.

    Of two messages at the same instant, that of the earlier collective leaves first, whatever order nodes run in.
    """
    rank = program.op[slot % program.ops].node
    node = state.node[rank]
    if node.send_head < 0:
        state.sender[state.shared[0].senders] = rank
        state.shared[0].senders += 1
    before, at = -1, node.send_head
    while at >= 0 and _posted_number(program, state, at) < _posted_number(program, state, slot):
        before, at = at, state.slot[at].next
    state.slot[slot].next = at
    if before < 0:
        node.send_head = slot
    else:
        state.slot[before].next = slot


@jit_part
def _posted_number(program: Program, state: State, slot: int) -> int:
    number = state.repetition[slot // program.ops].number * len(program.members)
    return int(number + program.op[slot % program.ops].collective)


@jit_part
def send_next(program: Program, state: State, rank: int, now: float) -> None:
    """Send the next messages of each collective that node `rank` has in its queue, as far as possible."""
    node = state.node[rank]
    while node.send_head >= 0:
        slot = node.send_head
        own = state.slot[slot]
        node.send_head = own.next
        own.in_todo = 0
        op = program.op[slot % program.ops]
        if op.at_once:
            for number in range(op.messages):
                if not state.message[slot * state.shared[0].at_once + number].begun:
                    _send(program, state, slot, number, number, now)
        else:
            _send(program, state, slot, own.sent, 0, now)


@jit_part
def _send(program: Program, state: State, slot: int, number: int, place: int, now: float) -> None:
    """Send message `number` of collective `slot`, as its message `place` in memory, if possible."""
    own, op = state.slot[slot], program.op[slot % program.ops]
    message = program.message[op.first_message + number]
    members = program.members[op.collective]
    pair = op.node * program.world + message.to % program.world
    there = slot - slot % program.ops + members[state.connection[pair].target]
    if own.received < message.after or not state.slot[there].started:
        return
    own.sent += 1
    own.sending += 1
    at = slot * state.shared[0].at_once + place
    state.message[at].begun = 1
    state.message[at].bytes = program.op[members[(op.node + message.part_of) % program.n]].bytes / message.parts
    state.message[at].counts = message.counts
    state.message[at].waits_s = 0.0
    if op.segment > 0 and state.message[at].bytes > 0:
        state.message[at].waits_s = _waits_of_segments(program, state, pair, state.message[at].bytes, op.segment)
    put_on_wire(state, pair, at, now)


@jit_part
def _waits_of_segments(program: Program, state: State, pair: int, size: float, segment: int) -> float:
    """Seconds that a message of `size` bytes takes longer because its segments wait for each other.

    Two segments are under way, and both have arrived before the next two leave. So each further segment costs a
    latency. Meanwhile an idle link saves a burst for it.
    """
    connection = state.connection[pair]
    link = state.link[state.node[connection.source].link_out]
    further = max(_FEWEST_SEGMENTS, int(np.ceil(size / segment))) - 1
    own = max(0.0, size - state.shared[0].burst) / further
    saved = min(own, state.shared[0].burst)
    if program.world > 2:
        saved += _OVERLAP * own
    latency = latency_of(state, pair)
    return float(further * max(0.0, latency - saved / link.capacity))


@jit_part
def message_arrived(program: Program, state: State, slot: int, target: int, counts: int, now: float) -> None:
    """A message of the sender's `slot` is at node `target`."""
    op = program.op[slot % program.ops]
    base = slot - slot % program.ops
    if op.kind == SEND:
        complete(program, state, base + op.partner, now)
        return
    there = base + program.members[op.collective, target]
    state.slot[there].received += counts
    remember(state, there)


@jit_part
def message_left(program: Program, state: State, slot: int, now: float) -> None:
    """The last byte of the message of `slot` has left."""
    if program.op[slot % program.ops].kind == SEND:
        complete(program, state, slot, now)
    else:
        state.slot[slot].sending -= 1
        remember(state, slot)


@jit_part
def complete(program: Program, state: State, slot: int, now: float) -> None:
    """Operation `slot` is done on its node: wake the node if it waits, and start the operations after it."""
    state.slot[slot].done = 1
    state.repetition[slot // program.ops].open_ops -= 1
    rank = program.op[slot % program.ops].node
    node = state.node[rank]
    if node.waits_for == slot:
        node.waits_for = -1
        _account_wait(program, state, slot, rank, now)
        wake(state, rank)
    edge = state.slot[slot].after_head
    while edge >= 0:
        owner = slot - slot % program.ops + program.event[edge % len(program.event)].owner
        state.slot[owner].missing -= 1
        if state.slot[owner].missing == 0 and state.slot[owner].posted_at >= 0:
            ready(program, state, owner, now)
        edge = state.after_next[edge]


@jit_part
def _account_wait(program: Program, state: State, slot: int, rank: int, now: float) -> None:
    """Waiting is idle until the last participant has posted the operation, and communication after that.

    A wait for the node's own work counts as computing.
    """
    number, since = slot % program.ops, state.node[rank].wait_since
    op, base = program.op[number], slot - number
    if op.kind == WORK:
        state.spent[rank, SPAN_COMPUTE] += now - since
        add_span(state, SPAN_COMPUTE, rank, number - program.op_base[rank], -1, 0.0, since, now)
        return
    all_posted = state.slot[slot].posted_at
    if op.partner >= 0:
        all_posted = max(all_posted, state.slot[base + op.partner].posted_at)
    else:
        for member in program.members[op.collective]:
            all_posted = max(all_posted, state.slot[base + member].posted_at)
    between = min(max(all_posted, since), now)
    state.spent[rank, SPAN_IDLE] += between - since
    state.spent[rank, SPAN_COMMUNICATION] += now - between
    if between > since:
        add_span(state, SPAN_IDLE, rank, number - program.op_base[rank], -1, 0.0, since, between)
    if now > between:
        add_span(state, SPAN_COMMUNICATION, rank, number - program.op_base[rank], -1, 0.0, between, now)
