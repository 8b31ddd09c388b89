"""Broadcast down a binomial tree."""

from istbench.cluster.simulator.collectives.message import Message, Schedule


def schedule(nodes: int) -> Schedule:
    """Messages of a broadcast: in step k, each node that has the tensor sends it 2^k places further on."""
    return [
        [
            Message(to=1 << step, after=min(place, 1))
            for step in range(place.bit_length(), nodes.bit_length())
            if place + (1 << step) < nodes
        ]
        for place in range(nodes)
    ]
