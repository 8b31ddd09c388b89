"""All-gather on a ring, of parts that may differ in size."""

from istbench.cluster.simulator.collectives.message import Message, Schedule


def schedule(nodes: int) -> Schedule:
    """Each node hands its own part to the next one, then every part that it got from the one before."""
    return [[Message(to=1, after=step, part_of=-step) for step in range(nodes - 1)]]
