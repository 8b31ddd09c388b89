"""A trace of unequal machines: each node computes as on one of mean speed, so replays know its share alone."""

import numpy as np
import pytest

from istbench.cluster.trace import COMPUTE
from istbench.cluster.trace_builder import TraceBuilder
from istbench.node.trace_sample import rescaled


def events(seconds):
    builder = TraceBuilder(clock=lambda: 0.0)
    builder.compute(seconds)
    builder.wait(builder.post("all_reduce", 8))
    builder.mark("step")
    return builder.to_arrays()


def computing(found):
    return float(found["seconds"][found["code"] == COMPUTE].sum())


def test_equal_shares_on_unequal_machines_are_equal_work():
    # The same step takes 1 s on node 0 and 2 s on node 1, and 4/3 s at their mean speed.
    found = [rescaled(events(own), (1.0, 2.0), rank, 4 / 3) for rank, own in enumerate((1.0, 2.0))]
    assert [computing(own) for own in found] == pytest.approx([4 / 3, 4 / 3])


def test_shares_by_speed_are_unequal_work():
    # Both compute as long, since node 1 has half of the samples.
    found = [rescaled(events(1.0), (1.0, 2.0), rank, 4 / 3) for rank in range(2)]
    assert computing(found[0]) == pytest.approx(2 * computing(found[1]))


def test_machines_that_measure_about_alike_stay_as_recorded():
    own = events(1.0)
    assert np.array_equal(rescaled(own, (1.0, 1.2, 1.1), 1, 1.1), own)
