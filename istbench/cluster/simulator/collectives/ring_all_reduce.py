"""All-reduce on a ring, as gloo's and NCCL's."""

from istbench.cluster.simulator.collectives.message import Message, Schedule


def schedule(nodes: int) -> Schedule:
    """An n-th of the tensor at a time goes to the next node, once round to be summed and once to be handed out."""
    return [[Message(to=1, after=step, parts=nodes) for step in range(2 * (nodes - 1))]]
