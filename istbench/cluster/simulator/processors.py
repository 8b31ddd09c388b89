"""Computing on nodes: the training thread, the work beside it, and the time that messages take from both.

The training thread of a node uses all cores, work uses one, and a flowing message a share of one. On less than one
core, work uses the whole share: its seconds are those of that share. If all these are more than the node has,
threads share the cores that messages leave. Work waits in a queue by priority; one piece runs at a time.
"""

import numpy as np

from istbench.base.jit import jit_part
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import State, insert

# Computing continues at any rate of messages.
_LEAST_SHARE = 0.05


@jit_part
def pace(state: State, rank: int, now: float) -> None:
    """From `now` on, node `rank` computes as fast as its cores allow."""
    cores, node = state.shared[0].cores, state.node[rank]
    computing, working = node.busy_until < np.inf, node.work_until < np.inf
    if cores <= 0:
        return
    threads = (cores if computing else 0.0) + (min(1.0, cores) if working else 0.0)
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


@jit_part
def compute(state: State, rank: int, seconds: float, now: float) -> None:
    """The training thread of node `rank` computes for `seconds`, or longer if messages or work slow it."""
    node = state.node[rank]
    node.started = node.since = now
    node.left, node.busy_until = seconds, now + seconds / node.speed
    pace(state, rank, now)


@jit_part
def carry_message(state: State, rank: int) -> None:
    """Node `rank` sends or receives a message, which delays its computing."""
    shared, node = state.shared[0], state.node[rank]
    if shared.cores > 0 and node.busy_until < np.inf:
        delay = shared.cpu_message / shared.cores
        node.left += delay * node.speed
        node.busy_until += delay


@jit_part
def queue_work(program: Program, state: State, slot: int, now: float) -> None:
    """Put startable work into the queue of its node, behind work of equal priority."""
    rank = program.op[slot % program.ops].node
    node = state.node[rank]
    node.work_head = insert(program, state, node.work_head, slot)
    if node.working < 0:
        next_work(program, state, rank, now)


@jit_part
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
