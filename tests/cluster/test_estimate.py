"""Arithmetic of an estimate: what takes turns, searches, bytes of a trace."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import cluster

from istbench.cluster.estimate import NodeMemory, bytes_sent, fewest, fits, largest, round_seconds
from istbench.cluster.simulator import replay
from istbench.cluster.trace_builder import TraceBuilder, merge

SIZES = st.integers(0, 2**40)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_parts_add_up_to_the_fullest_moment(weights, activations, buffers, exchange, scratch):
    memory = NodeMemory(
        parameters=weights, gradients=weights, optimizer_state=0, activations=activations, buffers=buffers,
        round_buffers=exchange, optimizer_scratch=scratch,
    )  # fmt: skip
    assert memory.total == 2 * weights + buffers + max(activations, exchange, scratch)
    assert sum(memory.parts.values()) == memory.total
    assert memory.parts["activations"] == activations
    assert memory.parts["exchange_buffers"] + memory.reused == buffers + exchange


def test_what_is_not_complete_never_fits():
    known = NodeMemory(parameters=10, gradients=10, optimizer_state=0, activations=5)
    least = NodeMemory(parameters=10, gradients=10, optimizer_state=0, activations=None)
    assert [fits(known, limit) for limit in (24, 25)] == [False, True]
    assert [fits(least, limit) for limit in (19, 25)] == [False, None]
    assert fits(None, 25) is None


@given(st.integers(0, 1200), st.integers(1, 1000), st.integers(1, 3), st.integers(1, 1200))
def test_the_largest_is_found_from_anywhere(edge, start, power, most):
    def spare(number):
        return edge**power - number**power if number <= most else -math.inf

    assert largest(spare, start, 1000) == (min(edge, most, 1000) or None)


@given(st.integers(1, 1200), st.integers(1, 1000))
def test_the_fewest_are_found(edge, most):
    assert fewest(lambda number: number >= edge, most) == (edge if edge <= most else None)


def test_bytes_are_counted_as_the_fabric_counts_them():
    builder = TraceBuilder(lambda: 0.0)
    builder.post("all_reduce", 101)
    builder.post("send", 7, [1])
    builder.post("receive", 9, [1])
    builder.mark("round")
    assert bytes_sent(builder.to_arrays(), 3) == 2 * 101 * 2 // 3 + 7
    builder.post("all_gather", 5)
    builder.post("reduce_scatter", 60)
    builder.post("broadcast", 11, [1])
    before = 2 * 101 * 2 // 3 + 7 + 2 * 5 + 40
    assert [bytes_sent(builder.to_arrays(), 3, rank) - before for rank in range(3)] == [0, 22, 0]


def planned_node(random, under_way):
    """Three rounds of collectives, of which up to `under_way` are under way beside computing."""
    builder, waiting = TraceBuilder(lambda: 0.0), []
    for _ in range(3):
        for _ in range(random.randint(1, 8)):
            builder.compute(random.random() * random.choice([1e-3, 1e-2, 1e-1]))
            kind = random.choice(["all_reduce", "all_gather", "reduce_scatter"])
            waiting.append(builder.post(kind, random.choice([240, 24_000, 2_400_000])))
            while len(waiting) > under_way:
                builder.wait(waiting.pop(0))
        while waiting:
            builder.wait(waiting.pop(0))
        builder.mark("round")
    return builder.to_arrays()


@pytest.mark.parametrize("under_way", [0, 2])
@given(random=st.randoms(use_true_random=False), nodes=st.integers(2, 8))
def test_one_of_equal_nodes_stands_for_all(under_way, random, nodes):
    events = planned_node(random, under_way)
    few = round_seconds(merge([events], world_size=nodes), cluster())
    ends = replay(merge([events] * nodes), cluster(), compute_scale=1.0, folded=False).finish_s.max(axis=0)
    assert few == pytest.approx(ends[-1] - ends[-2], rel=1e-9)
