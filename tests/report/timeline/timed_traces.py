"""Traces of made-up nodes whose clocks say round figures, for timelines."""

from istbench.cluster.profile import load_profile
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.report.timeline.simulated import simulated_round

OFFICE = load_profile("office-1gbit")


class Node:
    """Records the events of one node at the times it is told."""

    def __init__(self, start=100.0):
        self.now = start
        self.builder = TraceBuilder(clock=lambda: self.now)

    def compute(self, wall, cpu=None):
        self.now += wall
        self.builder.compute(wall if cpu is None else cpu)

    def post(self, *operation):
        return self.builder.post(*operation)

    def wait(self, until, *ops):
        self.now = until
        for op in ops:
            self.builder.wait(op)

    def step(self, *, ends_round=False):
        if ends_round:
            self.builder.mark("round")
        self.builder.mark("step")


def trace_of(nodes, gflops=100.0):
    return merge([node.builder.to_arrays() for node in nodes], gflops=gflops)


def swapping(rounds=3, size=10_000_000):
    """Two nodes that compute (node 1 twice as long, on half a core) and swap buffers: 1.5 s a round."""
    nodes = [Node(), Node()]
    for number in range(rounds):
        for rank, node in enumerate(nodes):
            node.compute(0.25)
            node.step()
            node.compute(0.25 + 0.5 * rank, cpu=0.25)
            ops = [node.post(kind, size, (1 - rank,)) for kind in ("send", "receive")]
            node.wait(100.0 + 1.5 * (number + 1), *ops)
            node.step(ends_round=True)
    return trace_of(nodes)


def averaging(rounds=3, size=10_000_000, nodes=3, buckets=2):
    """Data parallel: backward posts buckets and waits for them inside its last computing; 2 s a round."""
    recorders = [Node() for _ in range(nodes)]
    for number in range(rounds):
        for rank, node in enumerate(recorders):
            ops = []
            for _ in range(buckets):
                node.compute(0.1 * (rank + 1))
                ops.append(node.post("all_reduce", size))
            node.compute(100.0 + 2.0 * (number + 1) - node.now, cpu=0.05)
            node.wait(node.now, *ops)
            node.step(ends_round=True)
    return trace_of(recorders)


def brief_exchange(rounds=3):
    """Two nodes that compute for 0.98 s and swap buffers in 0.02 s."""
    nodes = [Node(), Node()]
    for number in range(rounds):
        for rank, node in enumerate(nodes):
            node.compute(0.98)
            ops = [node.post(kind, 1000, (1 - rank,)) for kind in ("send", "receive")]
            node.wait(101.0 + number, *ops)
            node.step(ends_round=True)
    return trace_of(nodes)


def crossing(rounds=3):
    """As P3 does: what is posted in one round is waited for in the middle of the next one."""
    nodes, awaited = [Node(), Node()], [[], []]
    for number in range(rounds):
        for rank, node in enumerate(nodes):
            node.compute(0.1)
            node.wait(100.5 + number, *awaited[rank])
            node.compute(0.3)
            awaited[rank] = [node.post("receive", 1000, (1 - rank,))]
            node.post("send", 1000, (1 - rank,))
            node.compute(0.2)
            node.step(ends_round=True)
    return trace_of(nodes)


TRACES = {
    "swapping": swapping(),
    "averaging": averaging(),
    "crossing": crossing(),
    "alone": averaging(nodes=1, buckets=0),
}


def on_office(trace, number):
    return simulated_round(trace, OFFICE, number)
