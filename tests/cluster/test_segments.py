"""Parts of a trace between evaluations."""

import pytest
from traces import cluster, exactly, trace

from istbench.cluster.simulator import replay
from istbench.cluster.trace import segment

ROUNDS = 5


def rounds(node):
    """Rounds of computing and an all-reduce, each longer than the one before."""
    program = []
    for number in range(ROUNDS):
        program += [("compute", 0.01 * (1 + number + node)), ("post", "all_reduce", 30_000), ("wait", number)]
        program += [("mark", "round"), ("mark", "step")]
    return program


def test_parts_of_a_trace_take_the_seconds_of_their_rounds():
    whole = trace(rounds(0), rounds(1))
    found = replay(whole, cluster(), compute_scale=1.0)
    ends = found.finish_s[:, found.mark_kind == 1].max(axis=0)
    for first in range(1, ROUNDS):
        part = segment(whole, first, ROUNDS - first)
        assert (part.rounds, part.steps) == (ROUNDS - first, ROUNDS - first)
        assert replay(part, cluster(), compute_scale=1.0).seconds == exactly(ends[-1] - ends[first - 1])
    assert replay(segment(whole, 0, 2), cluster(), compute_scale=1.0).seconds == exactly(ends[1])


@pytest.mark.parametrize("wait", [("wait", 0), ("wait_before", "all_reduce", (), 1)])
def test_a_part_waits_for_no_operation_before_it(wait):
    program = [("post", "all_reduce", 10**6), ("mark", "step"), ("compute", 0.01), wait, ("mark", "step")]
    part = segment(trace(program, program), 1, 1)
    assert replay(part, cluster(), compute_scale=1.0).seconds == exactly(0.01)
