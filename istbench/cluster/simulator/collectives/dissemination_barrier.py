"""Barrier by dissemination."""

import math

from istbench.cluster.simulator.collectives.message import Message, Schedule


def schedule(nodes: int) -> Schedule:
    """Messages of a barrier: in step k, each node tells the one 2^k further that all it has heard of are there.

    Messages of a later step may overtake those of an earlier one. What they count halves with each step, so that
    all later ones together do not make up for an earlier one that is missing.
    """
    steps = (nodes - 1).bit_length()
    return [
        [
            Message(
                to=1 << step,
                after=2**steps - 2 ** (steps - step),
                counts=2 ** (steps - 1 - step),
                parts=math.inf,
            )
            for step in range(steps)
        ]
    ]
