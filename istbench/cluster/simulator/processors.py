"""What nodes compute: their training thread, the work beside it, and what carrying messages takes from both.

A node's training thread uses all of its cores, work one, a message that flows a share of one. Where these are more
than there are, threads share what carrying leaves over. Work waits in a queue by priority; one piece runs at a
time.
"""

import numpy as np

from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.queues import insert
from istbench.cluster.simulator.state import State
from istbench.jit import jit

# However much is carried, computing goes on.
_LEAST_SHARE = 0.05


@jit
def pace(state: State, rank: int, now: float) -> None:
    """From `now` on, what node `rank` computes goes as fast as its cores allow."""
    cores, node = state.shared[0].cores, state.node[rank]
    computing, working = node.busy_until < np.inf, node.work_until < np.inf
    if cores <= 0:
        return
    threads = (cores if computing else 0.0) + (1.0 if working else 0.0)
    left_over = max(_LEAST_SHARE * cores, cores - node.carrying)
    speed = min(1.0, left_over / threads) if threads > 0 else 1.0
    if speed == node.speed:
        return
    if computing:
        node.left = max(0.0, node.left - (now - node.since) * node.speed)
        node.since, node.busy_until = now, now + node.left / speed
    if working:
        node.work_left = max(0.0, node.work_left - (now - node.work_since) * node.speed)
        node.work_since, node.work_until = now, now + node.work_left / speed
    node.speed = speed


@jit
def compute(state: State, rank: int, seconds: float, now: float) -> None:
    """The training thread of node `rank` computes for `seconds`, if nothing slows it."""
    node = state.node[rank]
    node.started = node.since = now
    node.left, node.busy_until = seconds, now + seconds / node.speed
    pace(state, rank, now)


@jit
def carry_message(state: State, rank: int) -> None:
    """Node `rank` sends or receives a message: that takes from its computing, if there is any."""
    shared, node = state.shared[0], state.node[rank]
    if shared.cores > 0 and node.busy_until < np.inf:
        delay = shared.cpu_message / shared.cores
        node.left += delay * node.speed
        node.busy_until += delay


@jit
def queue_work(program: Program, state: State, slot: int, now: float) -> None:
    """Work that may start: into its node's queue, behind its equals."""
    rank = program.op[slot % program.ops].node
    node = state.node[rank]
    node.work_head = insert(program, state, node.work_head, slot)
    if node.working < 0:
        next_work(program, state, rank, now)


@jit
def next_work(program: Program, state: State, rank: int, now: float) -> None:
    """Start the most urgent work of node `rank`, if there is any."""
    node = state.node[rank]
    slot = node.work_head
    node.working, node.work_until = slot, np.inf
    if slot >= 0:
        node.work_head = state.slot[slot].next
        node.work_since, node.work_left = now, program.op[slot % program.ops].seconds
        node.work_until = now + node.work_left / node.speed
    pace(state, rank, now)
