"""Where a node's time goes: computing, communicating, and idling until others are there."""

import numpy as np
import pytest
from traces import BANDWIDTH, FLOW, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same, second_segment, trace

from istbench.cluster.simulator import replay


def data_parallel(layers, compute):
    posts = [step for layer in range(layers) for step in (("compute", compute), ("post", "all_reduce", SIZE))]
    return [*posts, *[("wait", op) for op in range(layers)]]


def test_communication_overlaps_compute_and_the_rest_is_exposed():
    one = 2 * (SIZE / 2 / BANDWIDTH + LATENCY + OVERHEAD + second_segment(2))
    hidden = replay(same(2, data_parallel(4, 2 * one)), cluster(), streams=1)
    assert hidden.seconds == exactly(8 * one + one)
    assert hidden.communication_s[:, 0] == exactly(np.full(2, one))
    exposed = replay(same(2, data_parallel(4, one / 4)), cluster(), streams=1)
    assert exposed.seconds == exactly(one / 4 + 4 * one)
    assert exposed.communication_s[:, 0] == exactly(np.full(2, 3.25 * one))
    assert exposed.idle_s.sum() == 0


def test_what_compute_hides_is_not_exposed():
    """As data parallel: the first bucket is on its way while the second is computed."""
    first, second = ("post", "all_reduce", 1_000_000), ("post", "all_reduce", 1_000_000)
    waits = [("wait", 0), ("wait", 1)]
    result = replay(
        same(2, [("compute", 1.0), first, ("compute", 2.0), second, *waits, ("compute", 0.5)]), cluster()
    )
    bucket = 2 * (0.5 + LATENCY + OVERHEAD + second_segment(2))
    assert result.seconds == exactly(3.5 + bucket)
    assert result.communication_s[:, -1] == exactly(np.full(2, bucket))
    assert result.compute_s[:, -1] == exactly(np.full(2, 3.5))
    assert result.link_use == exactly(2_000_000 / BANDWIDTH / result.seconds)


def test_two_streams_fill_the_gaps_of_one_another():
    """The second collective's messages go, or are prepared, while those of the first are under way."""
    work = same(2, [("post", "all_reduce", SIZE), ("post", "all_reduce", SIZE), ("wait", 0), ("wait", 1)])
    one, two = replay(work, cluster(), streams=1).seconds, replay(work, cluster(), streams=2).seconds
    assert one == exactly(4 * (FLOW / 2 + LATENCY + OVERHEAD + second_segment(2)))
    assert two == exactly(4 * (FLOW / 2) + OVERHEAD + LATENCY + second_segment(2))
    assert replay(work, cluster()).seconds == two


def test_a_straggler_makes_the_others_idle():
    step = blocking("all_reduce", SIZE)
    result = replay(trace(step, [("compute", 1.0), *step]), cluster())
    assert result.idle_s[:, 0] == exactly(np.array([1.0, 0.0]))
    assert result.communication_s[:, 0] == exactly(
        np.full(2, 2 * (FLOW / 2 + LATENCY + OVERHEAD + second_segment(2)))
    )
    assert result.compute_s + result.communication_s + result.idle_s == exactly(result.finish_s)


@pytest.mark.parametrize("transport", [False, True])
def test_collectives_over_the_transport_take_no_stream(transport):
    """Two nodes gather several tensors at once: only without streams do their latencies overlap."""
    count, size = 4, 100
    work = [("post", "all_gather", size)] * count + [("wait", number) for number in range(count)]
    found = replay(same(2, work, transport=transport), cluster(overhead_s=0.0), streams=1).seconds
    latencies = 1 if transport else count
    assert found == exactly(count * size / BANDWIDTH + latencies * LATENCY)
