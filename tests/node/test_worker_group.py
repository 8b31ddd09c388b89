"""The samples and the local steps of a run whose group of nodes becomes smaller and larger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.options.interval import Interval
from istbench.node.checkpoint_steps import Totals, WorkerGroup
from istbench.node.schedule import EvaluationSchedule, TrainingSpeed
from istbench.node.worker_group import ALL_NODES, Pace


@given(step=st.integers(0, 10**9))
def test_all_nodes_count_local_steps(step):
    pace = Pace(each=128, whole=128)
    assert pace.done(step) == pace.local(step) == ALL_NODES.local(step) == step


@given(first=st.integers(0, 100), nodes=st.integers(1, 4), step=st.integers(101, 1000))
def test_a_smaller_group_ends_after_as_many_samples(first, nodes, step):
    pace = Pace(first=first, samples=128 * first, each=32 * nodes, whole=128)
    last = pace.local(step)
    assert 128 * step <= pace.samples_after(last) < 128 * step + 32 * nodes
    assert pace.done(last - 1) < step == pace.done(last)


def test_evaluations_fall_after_as_many_samples():
    pace = Pace(first=20, samples=20 * 128, each=64, whole=128)
    assert pace.local(100) == 20 + 160
    for step, round_steps, end in ((20, 1, 40), (41, 1, 60), (41, 7, 63)):
        schedule = EvaluationSchedule(every=Interval(steps=10), last=180, round_steps=round_steps, pace=pace)
        assert schedule.end(step, 0.0, None, TrainingSpeed(0, 0.0)) == end


def test_the_seconds_of_a_node_are_those_of_its_groups():
    totals = Totals(
        step=50, train_s=100.0, wall_s=0, bytes_sent=0, bytes_received=0, computing_s=(60.0, 100.5), evaluations=0,
        evaluations_sha256="", groups=(
            WorkerGroup(nodes=4), WorkerGroup(nodes=2, train_s=30.0), WorkerGroup(nodes=3, train_s=60.0),
        ),
    )  # fmt: skip
    found = totals.node_seconds(5, ["a", "b", "a"])
    assert [node.host for node in found] == ["a", "b", "a", "", ""]
    assert [node.computing_s for node in found] == [60.0, 100.5, 0.0, 0.0, 0.0]
    assert [node.waiting_s for node in found] == pytest.approx([40.0, 0.0, 70.0, 30.0, 0.0])
