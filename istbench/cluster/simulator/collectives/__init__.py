"""Collectives as messages between nodes, a file each.

A node sends the messages of a collective one after the other: the next when the one before has left, those that it
needs have arrived, and its receiver has started the same collective. Having sent and received all, it is done.
"""

from collections.abc import Callable

from istbench.cluster.simulator.collectives import (
    binomial_broadcast,
    dissemination_barrier,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from istbench.cluster.simulator.collectives.message import Message, Schedule
from istbench.cluster.trace import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, REDUCE_SCATTER

__all__ = ["SCHEDULES", "Message", "Schedule", "is_ring"]

# The schedule of each kind of collective for so many nodes.
SCHEDULES: dict[int, Callable[[int], Schedule]] = {
    ALL_REDUCE: ring_all_reduce.schedule,
    ALL_GATHER: ring_all_gather.schedule,
    REDUCE_SCATTER: ring_reduce_scatter.schedule,
    BROADCAST: binomial_broadcast.schedule,
    BARRIER: dissemination_barrier.schedule,
}


def is_ring(schedule: Schedule) -> bool:
    """Whether every node sends the same messages, all to the next node."""
    return len(schedule) == 1 and all(message.to == 1 for message in schedule[0])
