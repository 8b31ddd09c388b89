"""Queues by priority, as linked lists of slots."""

from istbench.base.jit import jit_part
from istbench.cluster.simulator.program import Program
from istbench.cluster.simulator.state import State


@jit_part
def insert(program: Program, state: State, head: int, slot: int) -> int:
    """Put `slot` into the queue at `head` (-1: empty), behind slots of equal priority; returns the new head."""
    priority = program.op[slot % program.ops].priority
    before, at = -1, head
    while at >= 0 and program.op[at % program.ops].priority <= priority:
        before, at = at, state.slot[at].next
    state.slot[slot].next = at
    if before < 0:
        return slot
    state.slot[before].next = slot
    return head
