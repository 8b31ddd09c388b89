"""Collectives as messages between nodes: ring all-reduce and all-gather, binomial tree, dissemination barrier.

A node sends its next message of a collective when the one before has left, what it needs has arrived, and the
receiver has started the same collective; `streams` collectives of a node run at once, started in posted order.
"""

from istbench.cluster.simulator.jit import jit
from istbench.cluster.simulator.network import add_span, put_on_wire, queue_send
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import SPAN_COMMUNICATION, SPAN_IDLE, State
from istbench.cluster.trace import ALL_REDUCE, BARRIER, BROADCAST, SEND


@jit
def remember(s: State, slot: int) -> None:
    """Look at this collective again before time goes on."""
    if not s.slot[slot].in_todo:
        s.slot[slot].in_todo = 1
        s.todo[s.shared[0].todo] = slot
        s.shared[0].todo += 1


@jit
def wake(s: State, node: int) -> None:
    s.runnable[s.shared[0].runnable] = node
    s.shared[0].runnable += 1


@jit
def ready_transfer(p: Program, s: State, slot: int, now: float) -> None:
    """One end of a transfer may start: it does when the other end may too."""
    op = slot % p.ops
    other = slot - op + p.op[op].partner
    s.slot[slot].ready = 1
    if s.slot[other].ready:
        queue_send(p, s, slot if p.op[op].kind == SEND else other, now)


@jit
def start_collectives(p: Program, s: State, number: int) -> None:
    """Start what was posted on node `number`, as far as its streams allow."""
    collectives = len(p.members)
    node = s.node[number]
    while node.collectives_running < s.shared[0].streams and node.collectives_started < node.collectives_posted:
        k = node.collectives_started
        base = (k // collectives) % len(s.repetition) * p.ops
        node.collectives_started += 1
        node.collectives_running += 1
        s.slot[base + p.members[k % collectives, number]].started = 1
        for member in p.members[k % collectives]:
            if s.slot[base + member].started:
                remember(s, base + member)


@jit
def advance(p: Program, s: State, slot: int, now: float) -> None:
    """Send the next message of collective `slot` if that can be, or finish it."""
    own = s.slot[slot]
    own.in_todo = 0
    if not own.started or own.sending or own.done:
        return
    op = p.op[slot % p.ops]
    base, n, rank, step = slot - slot % p.ops, p.n, op.node, own.sent
    size, target, may = op.bytes, (rank + 1) % n, False
    if op.kind == BROADCAST:
        place = (rank - op.peer) % n
        hop = 1
        while hop <= place:
            hop *= 2
        hop <<= step
        more = place + hop < n
        target = (rank + hop) % n
        may = place == 0 or own.received > 0
        received_all = may
    elif op.kind == BARRIER:
        size = 0.0
        more = (1 << step) < n
        target = (rank + (1 << step)) % n
        may = own.received & ((1 << step) - 1) == (1 << step) - 1
        received_all = may
    else:
        steps = 2 * (n - 1) if op.kind == ALL_REDUCE else n - 1
        more = step < steps
        may = own.received >= step
        received_all = own.received == steps
        if op.kind == ALL_REDUCE:
            size /= n
        elif more:
            size = p.op[p.members[op.collective, (rank - step) % n]].bytes
    if more:
        if may and s.slot[base + p.members[op.collective, target]].started:
            own.sending = 1
            own.bytes = size
            put_on_wire(s, rank * n + target, slot, now)
    elif received_all:
        s.node[rank].collectives_running -= 1
        complete(p, s, slot, now)
        start_collectives(p, s, rank)


@jit
def arrive(p: Program, s: State, slot: int, target: int, now: float) -> None:
    """A message of the sender's `slot` is at node `target`, and added up where it is to be."""
    op = p.op[slot % p.ops]
    base = slot - slot % p.ops
    if op.kind == SEND:
        complete(p, s, base + op.partner, now)
        return
    there = base + p.members[op.collective, target]
    if op.kind == BARRIER:
        distance, step = (target - op.node) % p.n, 0
        while (1 << step) < distance:
            step += 1
        s.slot[there].received |= 1 << step
    else:
        s.slot[there].received += 1
    remember(s, there)


@jit
def left(p: Program, s: State, slot: int, now: float) -> None:
    """The last byte of the message of `slot` has left."""
    if p.op[slot % p.ops].kind == SEND:
        complete(p, s, slot, now)
    else:
        s.slot[slot].sending = 0
        s.slot[slot].sent += 1
        remember(s, slot)


@jit
def complete(p: Program, s: State, slot: int, now: float) -> None:
    """Operation `slot` is done on its node: wake the node if it waits, and start what comes after it."""
    s.slot[slot].done = 1
    s.repetition[slot // p.ops].open_ops -= 1
    number = p.op[slot % p.ops].node
    node = s.node[number]
    if node.waits_for == slot:
        node.waits_for = -1
        _account_wait(p, s, slot, number, now)
        wake(s, number)
    edge = s.slot[slot].after_head
    while edge >= 0:
        owner = slot - slot % p.ops + p.event[edge % len(p.event)].owner
        s.slot[owner].missing -= 1
        if s.slot[owner].missing == 0 and s.slot[owner].posted_at >= 0:
            ready_transfer(p, s, owner, now)
        edge = s.after_next[edge]


@jit
def _account_wait(p: Program, s: State, slot: int, node: int, now: float) -> None:
    """Waiting is idle until the last node that takes part has posted its part, and communication from there."""
    number, since = slot % p.ops, s.node[node].wait_since
    op, base = p.op[number], slot - number
    all_posted = s.slot[slot].posted_at
    if op.partner >= 0:
        all_posted = max(all_posted, s.slot[base + op.partner].posted_at)
    else:
        for member in p.members[op.collective]:
            all_posted = max(all_posted, s.slot[base + member].posted_at)
    between = min(max(all_posted, since), now)
    s.spent[node, SPAN_IDLE] += between - since
    s.spent[node, SPAN_COMMUNICATION] += now - between
    if between > since:
        add_span(s, SPAN_IDLE, node, number - p.op_base[node], -1, 0.0, since, between)
    if now > between:
        add_span(s, SPAN_COMMUNICATION, node, number - p.op_base[node], -1, 0.0, between, now)
