"""Collectives as messages between nodes: ring all-reduce and all-gather, binomial tree, dissemination barrier.

A node sends its next message of a collective when the one before has left, what it needs has arrived, and the
receiver has started the same collective; `streams` collectives of a node run at once, started in posted order.
"""

from istbench.cluster.jit import jit
from istbench.cluster.network import RUNNABLE, TODO, State, add_span, put_on_wire, queue_send
from istbench.cluster.program import Program
from istbench.cluster.trace import ALL_REDUCE, BARRIER, BROADCAST, SEND

_COMMUNICATION, _IDLE = 1, 2  # the kinds of span, and the columns of State.spent


@jit
def remember(s: State, slot: int) -> None:
    """Look at this collective again before time goes on."""
    if not s.in_todo[slot]:
        s.in_todo[slot] = 1
        s.todo[s.i[TODO]] = slot
        s.i[TODO] += 1


@jit
def wake(s: State, node: int) -> None:
    s.runnable[s.i[RUNNABLE]] = node
    s.i[RUNNABLE] += 1


@jit
def ready_transfer(p: Program, s: State, slot: int, now: float) -> None:
    """One end of a transfer may start: it does when the other end may too."""
    op = slot % p.ops
    other = slot - op + p.partner[op]
    s.ready[slot] = 1
    if s.ready[other]:
        queue_send(p, s, slot if p.kind[op] == SEND else other, now)


@jit
def start_collectives(p: Program, s: State, node: int) -> None:
    """Start what was posted on `node`, as far as its streams allow."""
    collectives = len(p.members)
    while s.coll_running[node] < s.streams and s.coll_started[node] < s.coll_posted[node]:
        k = s.coll_started[node]
        base = (k // collectives) % len(s.held) * p.ops
        s.coll_started[node] = k + 1
        s.coll_running[node] += 1
        s.started[base + p.members[k % collectives, node]] = 1
        for member in p.members[k % collectives]:
            if s.started[base + member]:
                remember(s, base + member)


@jit
def advance(p: Program, s: State, slot: int, now: float) -> None:
    """Send the next message of collective `slot` if that can be, or finish it."""
    s.in_todo[slot] = 0
    if not s.started[slot] or s.sending[slot] or s.done[slot]:
        return
    op = slot % p.ops
    base, n, rank, kind, step = slot - op, p.n, p.node[op], p.kind[op], s.sent[slot]
    got, size, target, may = s.received[slot], p.size[op], (rank + 1) % n, False
    if kind == BROADCAST:
        place = (rank - p.peer[op]) % n
        hop = 1
        while hop <= place:
            hop *= 2
        hop <<= step
        more = place + hop < n
        target = (rank + hop) % n
        may = place == 0 or got > 0
        received_all = may
    elif kind == BARRIER:
        size = 0.0
        more = (1 << step) < n
        target = (rank + (1 << step)) % n
        may = got & ((1 << step) - 1) == (1 << step) - 1
        received_all = may
    else:
        steps = 2 * (n - 1) if kind == ALL_REDUCE else n - 1
        more = step < steps
        may = got >= step
        received_all = got == steps
        if kind == ALL_REDUCE:
            size /= n
        elif more:
            size = p.size[p.members[p.collective[op], (rank - step) % n]]
    if more:
        if may and s.started[base + p.members[p.collective[op], target]]:
            s.sending[slot] = 1
            pair = rank * n + target
            s.message_bytes[slot] = size
            put_on_wire(s, pair, slot, now)
    elif received_all:
        s.coll_running[rank] -= 1
        complete(p, s, slot, now)
        start_collectives(p, s, rank)


@jit
def arrive(p: Program, s: State, slot: int, target: int, now: float) -> None:
    """The last byte of a message of the sender's `slot` is at node `target`."""
    op = slot % p.ops
    if p.kind[op] == SEND:
        complete(p, s, slot - op + p.partner[op], now)
        return
    there = slot - op + p.members[p.collective[op], target]
    if p.kind[op] == BARRIER:
        distance, step = (target - p.node[op]) % p.n, 0
        while (1 << step) < distance:
            step += 1
        s.received[there] |= 1 << step
    else:
        s.received[there] += 1
    remember(s, there)


@jit
def left(p: Program, s: State, slot: int, now: float) -> None:
    """The last byte of the message of `slot` has left."""
    if p.kind[slot % p.ops] == SEND:
        complete(p, s, slot, now)
    else:
        s.sending[slot] = 0
        s.sent[slot] += 1
        remember(s, slot)


@jit
def complete(p: Program, s: State, slot: int, now: float) -> None:
    """Operation `slot` is done on its node: wake the node if it waits, and start what comes after it."""
    s.done[slot] = 1
    s.open_ops[slot // p.ops] -= 1
    node = p.node[slot % p.ops]
    if s.waits_for[node] == slot:
        s.waits_for[node] = -1
        _account_wait(p, s, slot, node, now)
        wake(s, node)
    edge = s.after_head[slot]
    while edge >= 0:
        owner = slot - slot % p.ops + p.owner[edge % len(p.code)]
        s.missing[owner] -= 1
        if s.missing[owner] == 0 and s.posted_at[owner] >= 0:
            ready_transfer(p, s, owner, now)
        edge = s.after_next[edge]


@jit
def _account_wait(p: Program, s: State, slot: int, node: int, now: float) -> None:
    """Waiting is idle until the last node that takes part has posted its part, and communication from there."""
    op = slot % p.ops
    base, since = slot - op, s.wait_since[node]
    all_posted = s.posted_at[slot]
    if p.partner[op] >= 0:
        all_posted = max(all_posted, s.posted_at[base + p.partner[op]])
    else:
        for member in p.members[p.collective[op]]:
            all_posted = max(all_posted, s.posted_at[base + member])
    between = min(max(all_posted, since), now)
    s.spent[node, _IDLE] += between - since
    s.spent[node, _COMMUNICATION] += now - between
    if between > since:
        add_span(s, _IDLE, node, op - p.op_base[node], -1, 0.0, since, between)
    if now > between:
        add_span(s, _COMMUNICATION, node, op - p.op_base[node], -1, 0.0, between, now)
