"""Operations from when they are posted until they are done: transfers between two nodes, and collectives.

`streams` collectives of a node run at once, started in posted order; `collectives` says what they send.
"""

from istbench.cluster.simulator.jit import jit
from istbench.cluster.simulator.network import add_span, put_on_wire, queue_send
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import SPAN_COMMUNICATION, SPAN_IDLE, State
from istbench.cluster.trace import SEND


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
    base, rank = slot - slot % p.ops, op.node
    if own.sent == op.messages:
        if own.received == op.awaits:
            s.node[rank].collectives_running -= 1
            complete(p, s, slot, now)
            start_collectives(p, s, rank)
        return
    message = p.message[op.first_message + own.sent]
    if own.received < message.after:
        return
    members = p.members[op.collective]
    target = (rank + message.to) % p.n
    if s.slot[base + members[target]].started:
        own.sending = 1
        own.bytes = p.op[members[(rank + message.part_of) % p.n]].bytes / message.parts
        own.counts = message.counts
        put_on_wire(s, rank * p.n + target, slot, now)


@jit
def arrive(p: Program, s: State, slot: int, target: int, counts: int, now: float) -> None:
    """A message of the sender's `slot` is at node `target`."""
    op = p.op[slot % p.ops]
    base = slot - slot % p.ops
    if op.kind == SEND:
        complete(p, s, base + op.partner, now)
        return
    there = base + p.members[op.collective, target]
    s.slot[there].received += counts
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
