"""Time on a cluster at any local step: against full replays, and against what a ring costs by hand."""

import dataclasses
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from fake_runs import averaging_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import BANDWIDTH, cluster, random_trace

from istbench.base.errors import UserError
from istbench.cluster.clock import cluster_time, dollars
from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import STEP
from istbench.cluster.trace_builder import TraceBuilder, merge

M5 = load_profile("m5.2xlarge")
# No cost of a message but its bytes, and as fast as the recording machine.
BARE = dataclasses.replace(M5, gflops=100.0, latency_s=0.0, overhead_s=0.0, bandwidth_out=8e6, bandwidth_in=8e6)


def replayed_in_full(trace, profile, steps):
    """When the last node has done each of `steps`, ends of rounds, of a replay of all rounds there are."""
    rounds = -(-max(steps) * trace.rounds // trace.steps)
    found = replay(trace, profile, rounds=rounds + trace.rounds)
    return found.finish_s[:, found.mark_kind == STEP].max(axis=0)[np.array(steps) - 1]


@pytest.mark.parametrize("local_steps", [1, 5])
@pytest.mark.parametrize("compute", [(0.01,), (0.01, 0.03, 0.02)])
@pytest.mark.parametrize("profile", ["m5.2xlarge", "home-100mbit"])
def test_extended_by_periods_it_is_the_full_replay(local_steps, compute, profile):
    trace = averaging_trace(3, local_steps=local_steps, compute=compute)
    steps = [local_steps * rounds for rounds in (1, 2, 3, 7, 24, 25, 50, 81)]
    cluster = load_profile(profile)
    expected = replayed_in_full(trace, cluster, steps)
    assert cluster_time(trace, cluster, steps).seconds == pytest.approx(expected, rel=1e-9)


def test_the_replayed_part_is_exact():
    trace = averaging_trace(2, local_steps=4, rounds=3, compute=(0.01, 0.02))
    steps = list(range(4, 8 * trace.steps + 1, 4))
    assert list(cluster_time(trace, M5, steps, steady=False).seconds) == replay(trace, M5, rounds=8 * 3).finish_s[
        :, np.tile([False, False, False, False, True], 8 * 3)
    ].max(axis=0).tolist()  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_ended_in_a_steady_state_it_is_the_long_replay(seed):
    random = np.random.default_rng(seed)
    trace = random_trace(random, int(random.integers(1, 6)), operations=6, rounds=3)
    cluster = dataclasses.replace(
        M5, gflops=100.0, bandwidth_out=float(random.choice([8e5, 8e6])), cores=[None, 4.0][seed % 2]
    )
    steps = [1, 4, 3 * 3 + 1, 3 * 8, 100, 1000]
    short, long = (cluster_time(trace, cluster, steps, steady=steady).seconds for steady in (True, False))
    assert short == pytest.approx(long, rel=1e-3)


def test_a_step_inside_a_round_is_followed_by_an_exchange_and_a_ring_costs_what_it_sends():
    """Each node sends 2 (n-1) / n of the bytes; at 1 MB/s that is 1.5 s for 1 MB on four nodes."""
    trace = averaging_trace(4, local_steps=5, compute=(0.01,), size=1_000_000)
    steps = [0, 4, 5, 9, 10, 1003]
    expected = [0, 0.04 + 1.5, 0.05 + 1.5, 0.09 + 3.0, 0.1 + 3.0, 10.03 + 201 * 1.5]
    assert cluster_time(trace, BARE, steps).seconds == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("whole_rounds", [1, 5, 60])
@pytest.mark.parametrize("profile", ["m5.2xlarge", "home-100mbit"])
def test_a_step_inside_a_round_takes_as_long_as_a_run_whose_last_round_is_that_short(profile, whole_rounds):
    cluster, compute = load_profile(profile), (0.01, 0.03, 0.02)
    for left in (1, 3):
        ended = [*[4] * whole_rounds, left]
        short = merge([rounds_of(ended, seconds).to_arrays() for seconds in compute], gflops=100.0)
        (seconds,) = cluster_time(averaging_trace(3, local_steps=4, compute=compute), cluster, [sum(ended)]).seconds
        # Exchanges in turns hide less behind the computing of slower nodes after a shorter round.
        exact = replay(short, cluster, rounds=len(ended)).seconds
        assert seconds == pytest.approx(exact, rel=0.01, abs=2 * cluster.latency_s)


def rounds_of(lengths, seconds):
    """The record of one node: rounds of so many steps, each of `seconds`, that end in an all-reduce of 1 MB."""
    builder = TraceBuilder(clock=lambda: 0.0)
    for steps in lengths:
        for step in range(steps):
            builder.compute(seconds)
            if step == steps - 1:
                builder.wait(builder.post("all_reduce", 1_000_000))
                builder.mark("round")
            builder.mark("step")
    return builder


def test_a_warm_up_costs_the_exchange_of_each_of_its_steps():
    compute = (0.01, 0.03, 0.02)
    trace = averaging_trace(3, local_steps=4, compute=compute)
    warm = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, warmup_steps=8))
    for steps in (4, 8, 20, 400):
        ended = [*[1] * min(steps, 8), *[4] * ((steps - 8) // 4)]
        whole = merge([rounds_of(ended, seconds).to_arrays() for seconds in compute], gflops=100.0)
        (seconds,) = cluster_time(warm, M5, [steps]).seconds
        assert seconds == pytest.approx(replay(whole, M5, rounds=len(ended)).seconds, rel=0.01)
        assert warm.warmup_exchanges(steps) == len(ended) - steps // 4
        # The average of the optimizer's state, once: as an exchange of a model, and only after the warm-up.
        stateful = dataclasses.replace(warm, meta=msgspec.structs.replace(warm.meta, warmup_state=2))
        more = cluster_time(stateful, M5, [steps]).seconds[0] - seconds
        assert more > 0 if steps >= 8 else more == 0


def test_every_evaluation_waits_for_the_last_exchange_once():
    trace = averaging_trace(3, local_steps=4, compute=(0.01, 0.03, 0.02))
    late = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, last_bytes=30_000_000))
    builder = TraceBuilder(clock=lambda: 0.0)
    builder.wait(builder.post("all_reduce", 30_000_000))
    builder.mark("step")
    alone = replay(merge([builder.to_arrays()] * 3, gflops=100.0), M5).seconds
    for steps in (1, 4, 5, 400):
        (seconds,), (more,) = (cluster_time(own, M5, [steps]).seconds for own in (trace, late))
        assert more - seconds == pytest.approx(alone, rel=1e-6)
        assert alone > 4 / 3 * 30_000_000 * 8 / M5.bandwidth_out  # a ring of three nodes


def test_no_step_is_earlier_than_the_one_before():
    trace = averaging_trace(3, local_steps=7, compute=(0.01, 0.02))
    seconds = cluster_time(trace, M5, range(200)).seconds
    assert all(one <= other for one, other in pairwise(seconds))


def test_an_evaluation_waits_for_the_messages_under_way():
    """Each round ends with 1 MB that leaves each node while the next computes: a second, and some of the cores."""
    builders = [TraceBuilder(clock=lambda: 0.0) for _ in range(2)]
    for rank, builder in enumerate(builders):
        for _ in range(3):
            builder.compute(4.0)
            builder.post("receive", 1_000_000, (1 - rank,))
            builder.post("send", 1_000_000, (1 - rank,))
            builder.mark("round")
            builder.mark("step")
    trace = merge([builder.to_arrays() for builder in builders], gflops=100.0)
    assert cluster_time(trace, BARE, [0, 1, 2, 100]).seconds == pytest.approx([0.0, 5.0, 9.0, 401.0], rel=1e-3)


def test_compute_is_scaled_by_the_speed_of_the_machines():
    trace = averaging_trace(1, compute=(0.01,), gflops=100.0)
    twice = dataclasses.replace(BARE, gflops=200.0)
    assert cluster_time(trace, twice, [10]).seconds == pytest.approx([0.05])


def test_step_zero_takes_no_time_and_nothing_asked_is_nothing():
    trace = averaging_trace(2)
    assert cluster_time(trace, M5, [0]).seconds == (0.0,)
    assert cluster_time(trace, M5, []).seconds == ()


def test_where_the_time_goes():
    """One node computes 10 ms a step and the other 30 ms, then 1 MB is averaged in one second."""
    time = cluster_time(averaging_trace(2, compute=(0.01, 0.03)), BARE, [100])
    assert time.seconds == pytest.approx((103.0,))
    assert time.compute == pytest.approx(0.02 / 1.03)
    assert time.idle == pytest.approx(0.01 / 1.03)
    assert time.communication == pytest.approx(1 / 1.03)
    assert time.link_use == pytest.approx(1 / 1.03)
    assert time.nodes == 2


def test_what_messages_take_of_a_nodes_cores():
    """A ring of two: a node sends and receives 1 MB in two messages a step, at .1 s a MB and 5 ms a message."""
    profile = dataclasses.replace(BARE, cores=4.0, cpu_s_per_byte=1e-7, cpu_s_per_message=0.005)
    time = cluster_time(averaging_trace(2, compute=(0.0, 0.0)), profile, [10])
    assert time.carrying == pytest.approx((2 * 0.1 + 4 * 0.005) / 4 / (time.seconds[-1] / 10), rel=0.01)


def test_a_half_duplex_link_carries_both_directions():
    half = dataclasses.replace(BARE, full_duplex=False)
    time = cluster_time(averaging_trace(2, compute=(0.0,)), half, [10])
    assert time.link_use == pytest.approx(1.0)


def test_dollars_are_of_all_nodes():
    assert dollars(M5, 4, 1800) == pytest.approx(0.384 * 2)


def test_a_trace_without_local_steps_is_refused():
    builder = TraceBuilder()
    builder.mark("round")
    with pytest.raises(UserError, match="marks no local steps"):
        cluster_time(merge([builder.to_arrays()], gflops=1.0), M5, [1])


def test_replays_of_one_trace_on_several_clusters_are_those_of_a_trace_each():
    trace = random_trace(np.random.default_rng(3), nodes=4, operations=6, rounds=2)
    steps, kept = [0, 1, 5, 40], random_trace(np.random.default_rng(3), nodes=4, operations=6, rounds=2)
    profiles = [
        cluster(bandwidth_out=bits, bandwidth_in=bits, gflops=speed)
        for speed in (50.0, 100.0)
        for bits in (BANDWIDTH, 3 * BANDWIDTH, 50 * BANDWIDTH)
    ]
    for profile in [*profiles, *reversed(profiles)]:
        assert cluster_time(kept, profile, steps) == cluster_time(dataclasses.replace(trace), profile, steps)
