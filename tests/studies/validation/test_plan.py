"""The runs of a validation: their steps, and the methods that fit a workload."""

import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.node.registry import names_of
from istbench.studies.validation.measure import fitting, measured_rounds, rehearsed


@pytest.mark.parametrize(
    ("round_s", "round_steps", "rounds"),
    [(0.01, 1, 167), (0.5, 20, 4), (3.0, 20, 1), (1e-9, 1, 6_666), (0.001, 100_000, 1)],
)
def test_the_measured_segments_take_about_five_seconds_in_whole_rounds(round_s, round_steps, rounds):
    found = measured_rounds(round_s, round_steps, 5.0)
    assert found.segment_rounds == rounds
    assert found.steps == 3 * rounds * round_steps
    fit = found.fit(RunRequest(workload="toy", method="ddp"))
    assert fit.steps == 4 * rounds * round_steps
    assert fit.eval_every.steps == rounds * round_steps


@pytest.mark.parametrize(("round_steps", "rounds"), [(1, 10), (4, 3), (20, 2)])
def test_a_rehearsal_has_two_rounds_and_ten_steps_a_segment(round_steps, rounds):
    assert rehearsed(round_steps).segment_rounds == rounds


def requests(*workloads, methods, nodes=(2,)):
    return [
        RunRequest(workload=workload, method=method, nodes=count, threads=1)
        for count in nodes
        for workload in workloads
        for method in methods
    ]


def test_each_method_trains_the_first_workload_that_it_fits():
    everything = names_of("methods")
    found = fitting(requests("toy", "amazon670k", methods=everything, nodes=(2, 3)), lambda *_: None)
    assert [request.method for request in found if request.workload == "amazon670k" and request.nodes == 2] == [
        "dslide", "model_parallel", "sampled_softmax",
    ]  # fmt: skip
    assert sorted(request.method for request in found if request.nodes == 3) == sorted(everything)


def test_a_method_that_the_user_names_must_fit():
    candidates = requests("toy", methods=("ddp", "dslide"))
    assert [request.method for request in fitting(candidates, lambda *_: None)] == ["ddp"]
    with pytest.raises(UserError, match="toy"):
        fitting(candidates, lambda *_: None, {"ddp", "dslide"})
    with pytest.raises(UserError, match="toy"):
        fitting(candidates[1:], lambda *_: None)
