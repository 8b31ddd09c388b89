"""Broadcast down a binomial tree."""

from istbench.cluster.simulator.collectives.message import Message, Schedule


def schedule(nodes: int) -> Schedule:
    """In step k, each node that has the tensor sends it to the one 2^k places further from the root."""
    return [
        [
            Message(to=1 << step, after=min(place, 1))
            for step in range(place.bit_length(), nodes.bit_length())
            if place + (1 << step) < nodes
        ]
        for place in range(nodes)
    ]
