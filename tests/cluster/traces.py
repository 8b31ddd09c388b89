"""Traces made by hand, and a cluster whose figures are easy to compute with."""

import pytest

from istbench.cluster.profile import ClusterProfile
from istbench.cluster.trace_builder import TraceBuilder, merge

BANDWIDTH = 1e6  # bytes a second
LATENCY, OVERHEAD = 0.003, 0.0007  # seconds
SIZE = 60_000
FLOW = SIZE / BANDWIDTH
HOP = OVERHEAD + FLOW + LATENCY


def second_segment(nodes):
    """Seconds that the second segment of a message waits, in an all-reduce of `SIZE` bytes by gloo."""
    overlap = 0.3 * SIZE / nodes / BANDWIDTH if nodes > 2 else 0.0
    return max(0.0, LATENCY - overlap)


def exactly(seconds):
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)


def cluster(**changes):
    fields = {
        "name": "test",
        "summary": "round figures",
        "gflops": 100.0,
        "source": "made up",
        "memory_gib": 1.0,
        "bandwidth_out": 8 * BANDWIDTH,
        "bandwidth_in": 8 * BANDWIDTH,
        "latency_s": LATENCY,
        "overhead_s": OVERHEAD,
        "full_duplex": True,
        "price_per_hour": 0.0,
        "price_date": "2024-12",
        "price_source": "made up",
        "backend": "gloo",
        "in_turns": False,
        "slow_start": False,
        "window_bytes": 1e12,
    }
    return ClusterProfile(**{**fields, **changes})


def trace(*programs, **meta):
    """What nodes do by their programs, lists of (method of the builder, *arguments); one step by default."""
    builders = []
    for program in programs:
        builder = TraceBuilder(clock=lambda: 0.0)
        for name, *arguments in program:
            getattr(builder, name)(*arguments)
        if not any(name == "mark" for name, *_ in program):
            builder.mark("step")
        builders.append(builder)
    return merge([builder.to_arrays() for builder in builders], **{"gflops": 100.0, **meta})


def same(nodes, program, **meta):
    """`nodes` nodes that all do `program`."""
    return trace(*[program] * nodes, **meta)


def blocking(kind, bytes=0, peers=()):
    """A program that does one operation and waits for it."""
    return [("post", kind, bytes, peers), ("wait", 0)]


def transfers(sizes, nodes):
    """Every pair (source, target) of `sizes` sends so many bytes, all at once, among `nodes` nodes."""
    programs = []
    for rank in range(nodes):
        receives = [("post", "receive", size, (a,)) for (a, b), size in sizes.items() if b == rank]
        sends = [("post", "send", size, (b,)) for (a, b), size in sizes.items() if a == rank]
        posts = receives + sends
        programs.append([*posts, *[("wait", op) for op in range(len(posts))]])
    return trace(*programs)


def random_trace(random, nodes, operations, rounds):
    """A sound trace: the same random operations on every node, waited for in a random order, without circles.

    Every wait comes after all of its round's posts, and what a transfer comes after was posted before it.
    """
    builders = [TraceBuilder(clock=lambda: 0.0) for _ in range(nodes)]
    for _ in range(rounds):
        posted = [[] for _ in builders]
        for _ in range(operations):
            for builder in builders:
                builder.compute(float(random.choice([0.0, random.uniform(0, 0.02)])))
            kind = str(
                random.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", *["send"] * 3])
            )
            size = int(random.choice([0, 1, random.integers(1, 30_000)]))
            if kind == "send" and nodes > 1:
                source, target = random.choice(nodes, 2, replace=False).tolist()
                priority = int(random.integers(3))
                after = posted[source][-1:] if random.random() < 0.3 else []
                posted[source].append(builders[source].post("send", size, (target,), priority, after))
                posted[target].append(builders[target].post("receive", size, (source,)))
            elif kind != "send":
                peers = (int(random.integers(nodes)),) if kind == "broadcast" else ()
                for rank, builder in enumerate(builders):
                    part = size + 100 * rank if kind == "all_gather" else 0 if kind == "barrier" else size
                    posted[rank].append(builder.post(kind, part, peers))
        for builder, mine in zip(builders, posted, strict=True):
            for op in random.permutation(mine).tolist():
                builder.wait(int(op))
            builder.mark("step")
            builder.mark("round")
    return merge([builder.to_arrays() for builder in builders], gflops=100.0)
