"""Reduce-scatter on a ring, as NCCL's."""

from istbench.cluster.simulator.collectives.message import Message, Schedule


def schedule(nodes: int) -> Schedule:
    """An n-th of the tensor at a time goes to the next node, to be summed: the first half of an all-reduce."""
    return [[Message(to=1, after=step, parts=nodes) for step in range(nodes - 1)]]
