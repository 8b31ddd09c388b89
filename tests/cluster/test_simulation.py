"""The simulation against what networks cost by hand."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import TraceBuilder, merge
from istbench.errors import UserError

BANDWIDTH = 8e6  # a million bytes a second
LATENCY, OVERHEAD = 0.003, 0.002
PROFILE = dataclasses.replace(
    load_profile("office-1gbit").with_bandwidth(BANDWIDTH), latency_s=LATENCY, overhead_s=OVERHEAD
)


def trace_of(nodes, program):
    """`program(builder, rank)` is what each of `nodes` does in one round."""
    builders = [TraceBuilder(lambda: 0.0) for _ in range(nodes)]
    for rank, builder in enumerate(builders):
        program(builder, rank)
        builder.mark("round")
        builder.mark("step")
    return merge([builder.to_arrays() for builder in builders], {})


def run(nodes, program, profile=PROFILE, **options):
    return replay(trace_of(nodes, program), profile, compute_scale=1.0, **options)


def collective(kind, size):
    def program(builder, rank):
        builder.wait(builder.post(kind, size, (0,) if kind == "broadcast" else ()))

    return program


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_a_ring_all_reduce(nodes):
    found = run(nodes, collective("all_reduce", 1_200_000))
    message = 1_200_000 / nodes / 1e6 + LATENCY + OVERHEAD
    assert found.seconds == pytest.approx(2 * (nodes - 1) * message, rel=1e-9)
    assert found.bytes_sent == pytest.approx(2 * (nodes - 1) / nodes * 1_200_000)
    assert found.bytes_received == pytest.approx(found.bytes_sent)


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_a_ring_all_gather(nodes):
    found = run(nodes, collective("all_gather", 500_000))
    assert found.seconds == pytest.approx((nodes - 1) * (0.5 + LATENCY + OVERHEAD), rel=1e-9)


def test_a_barrier_takes_the_logarithm_of_messages():
    found = run(8, collective("barrier", 0))
    assert found.seconds == pytest.approx(3 * (LATENCY + OVERHEAD), rel=1e-9)


def test_a_broadcast_is_a_tree():
    found = run(2, collective("broadcast", 1_000_000))
    assert found.seconds == pytest.approx(1 + LATENCY + OVERHEAD, rel=1e-9)


def exchange(sizes):
    """Every pair (source, target) of `sizes` sends so many bytes, all at once."""

    def program(builder, rank):
        ops = [builder.post("receive", size, [a]) for (a, b), size in sizes.items() if b == rank]
        ops += [builder.post("send", size, [b]) for (a, b), size in sizes.items() if a == rank]
        for op in ops:
            builder.wait(op)

    return program


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ({(0, 1): 1_000_000}, 1.0),
        ({(0, 1): 1_000_000, (1, 0): 1_000_000}, 1.0),  # full duplex
        ({(0, 1): 1_000_000, (0, 2): 1_000_000}, 2.0),  # share the way out
        ({(0, 2): 1_000_000, (1, 2): 1_000_000}, 2.0),  # share the way in
        ({(0, 1): 1_000_000, (2, 1): 1_000_000, (2, 0): 500_000}, 2.0),  # 0.5 of node 2's link is left to 2-0
    ],
)
def test_links_are_shared_fairly(sizes, seconds):
    found = run(3, exchange(sizes))
    assert found.seconds == pytest.approx(seconds + LATENCY + OVERHEAD, rel=1e-9)
    assert found.bytes_sent.sum() == found.bytes_received.sum() == sum(sizes.values())


def test_half_duplex_halves_what_goes_both_ways():
    half = dataclasses.replace(PROFILE, full_duplex=False)
    found = run(2, exchange({(0, 1): 1_000_000, (1, 0): 1_000_000}), half)
    assert found.seconds == pytest.approx(2 + LATENCY + OVERHEAD, rel=1e-9)


def urgent_last(builder, rank):
    """Four messages, the last the most urgent; the receiver says when it has that."""
    peer = 1 - rank
    kind = "receive" if rank else "send"
    ops = [builder.post(kind, 1_000_000, [peer], priority=priority) for priority in (3, 2, 1, 0)]
    if rank:
        builder.wait(ops[-1])
        builder.mark("step")
    for op in ops:
        builder.wait(op)
    if not rank:
        builder.mark("step")


@pytest.mark.parametrize(("window", "before"), [(1, 1), (2, 2), (4, 3)])
def test_an_urgent_message_overtakes_all_but_what_the_connection_holds(window, before):
    found = run(2, urgent_last, window=window)
    got_it = found.finish_s[1, 0]
    assert got_it == pytest.approx((before + 1) * (1 + OVERHEAD) + LATENCY, rel=1e-9)


def overlapping(builder, rank):
    """As data parallel: the first bucket is on its way while the second is computed."""
    builder.compute(1.0)
    first = builder.post("all_reduce", 1_000_000)
    builder.compute(2.0)
    second = builder.post("all_reduce", 1_000_000)
    builder.wait(first)
    builder.wait(second)
    builder.compute(0.5)


def test_what_compute_hides_is_not_exposed():
    found = run(2, overlapping)
    bucket = 2 * (0.5 + LATENCY + OVERHEAD)
    assert found.seconds == pytest.approx(3.5 + bucket, rel=1e-9)
    assert found.communication_s[:, -1] == pytest.approx(bucket, rel=1e-9)
    assert found.compute_s[:, -1] == pytest.approx(3.5)
    assert found.utilisation_out == pytest.approx(2_000_000 / 1e6 / found.seconds)


def straggling(builder, rank):
    builder.compute(1.0 + rank)
    builder.wait(builder.post("all_reduce", 1_000_000))


def test_waiting_for_a_slow_node_is_idle():
    found = run(2, straggling)
    assert found.idle_s[:, -1] == pytest.approx([1.0, 0.0])
    total = found.compute_s + found.communication_s + found.idle_s
    assert total == pytest.approx(found.finish_s, rel=1e-12)


def test_rounds_repeat_the_sample():
    one, many = run(3, straggling), run(3, straggling, rounds=50)
    assert many.rounds == many.steps == 50
    assert many.seconds == pytest.approx(50 * one.seconds, rel=1e-9)
    assert np.array_equal(run(3, straggling, rounds=50).finish_s, many.finish_s)


def random_trace(seed):
    """Everything at once: collectives in one order, transfers between random pairs, random compute."""
    generator = np.random.default_rng(seed)
    nodes = int(generator.integers(2, 6))
    plan = []
    for _ in range(12):
        a, b = generator.choice(nodes, 2, replace=False)
        plan.append((generator.random() < 0.4, int(a), int(b), int(generator.integers(0, 2_000_000)),
                     int(generator.integers(3)), generator.random(nodes)))  # fmt: skip

    def program(builder, rank):
        ops = []
        for together, a, b, size, priority, compute in plan:
            builder.compute(float(compute[rank]))
            if together:
                ops.append(builder.post("all_reduce", size))
            elif rank in (a, b):
                ops.append(
                    builder.post("send" if rank == a else "receive", size, [b if rank == a else a], priority)
                )
        for op in ops:
            builder.wait(op)

    return nodes, program


@pytest.mark.parametrize("seed", range(8))
def test_no_byte_is_lost_and_nothing_is_faster_than_it_can_be(seed):
    nodes, program = random_trace(seed)
    found = run(nodes, program, rounds=3)
    assert found.bytes_sent.sum() == pytest.approx(found.bytes_received.sum())
    assert found.seconds >= found.compute_s[:, -1].max()
    assert found.seconds >= max(found.bytes_sent.max(), found.bytes_received.max()) / 1e6 - 1e-9
    total = found.compute_s + found.communication_s + found.idle_s
    assert total == pytest.approx(found.finish_s, rel=1e-9)


def test_without_numba_the_numbers_are_the_same():
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_simulation import random_trace, run\n"
        "print(json.dumps([run(*random_trace(seed)).seconds for seed in range(3)]))"
    )
    folder = __file__.rsplit("/", 1)[0]
    plain = subprocess.run(
        [sys.executable, "-c", script, folder],
        env={"NUMBA_DISABLE_JIT": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(plain.stdout) == [run(*random_trace(seed)).seconds for seed in range(3)]


def test_what_cannot_be_replayed_is_said():
    with pytest.raises(UserError, match="ask for 1 or more"):
        run(2, straggling, rounds=0)
    with pytest.raises(UserError, match="does not say how fast the machine was"):
        replay(trace_of(2, straggling), PROFILE)

    def in_a_circle(builder, rank):
        """Each waits to receive before it sends."""
        builder.wait(builder.post("receive", 1, [1 - rank]))
        builder.wait(builder.post("send", 1, [1 - rank]))

    with pytest.raises(UserError, match="node 0 waits for operation 0"):
        run(2, in_a_circle)
