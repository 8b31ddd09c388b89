"""The truth after an advice: which runs are measured, and what stays after a failure."""

import dataclasses
import os
from types import SimpleNamespace

import msgspec
import pytest
from fake_runs import evaluation, header, ramp, write_run
from probes import ACCURACY, LINKS, candidate

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Backend, Outcome
from istbench.studies.advise.answer import advise
from istbench.studies.advise.candidate import is_scheduled
from istbench.studies.advise.measure import LOG, MeasuredCandidate, first_two, keep, measure, read_checked
from istbench.studies.advise.question import Probed, Question, check_given, enough_steps
from istbench.studies.advise.variant import Variant

LARGE = candidate("p3", failed="too large")
CANDIDATES = (candidate("ddp", baseline=True), candidate("zero", compute=0.011), LARGE)
ADVICE = advise(CANDIDATES, LINKS, workload="toy", nodes=2, metric=ACCURACY, target=0.8)
PROBED = Probed(
    question=Question(
        base=RunRequest(workload="toy", method="ddp", nodes=2), methods=("ddp", "zero"), given={}, cluster=LINKS,
        bandwidth=None, latency_s=None, seeds=1,
    ),
    candidates=CANDIDATES, profile=LINKS, metric=ACCURACY, target=0.8, target_from="given", early="",
    data="synthetic",
)  # fmt: skip


class Fake(Backend):
    """Ends each run as `endings` says by method: events, an error, or None for a run that goes on."""

    def __init__(self, **endings):
        self.endings, self.requests = endings, []

    def run(self, cells, out, again, screen):
        (request,) = cells
        self.requests.append(request)
        ending = self.endings[request.method]
        if isinstance(ending, UserError | RunFailed):
            yield Outcome(cell=request.method, failure=ending)
        elif ending is None:
            yield Outcome(cell=request.method, running=True)
        else:
            yield Outcome(cell=request.method, run=write_run(out, header(request.method), ending))


@pytest.fixture
def screen():
    lines = []
    return SimpleNamespace(note=lines.append, lines=lines)


@pytest.mark.parametrize(("high", "steps"), [(9.0, 200), (12.5, 250), (15.0, 300), (100.0, 400), (None, 400)])
def test_a_command_trains_beyond_the_slow_end_of_its_range_and_evaluates_as_often_as_to_its_middle(high, steps):
    choice = msgspec.structs.replace(ADVICE.best, steps=100.0, seconds=10.0, high=high)
    request = PROBED.request(choice)
    assert request.steps == enough_steps(choice) == steps
    assert request.eval_every.steps == 4


@pytest.mark.parametrize(("high", "steps"), [(9.0, 100), (12.0, 120), (100.0, 150), (None, 150)])
def test_a_schedule_gets_the_steps_that_it_needs_not_many_more(high, steps):
    choice = msgspec.structs.replace(
        ADVICE.best, steps=100.0, seconds=10.0, high=high, options={"schedule": "cosine"}
    )
    assert enough_steps(choice) == steps


def test_a_schedule_that_reached_the_target_trains_again_over_the_same_steps():
    options = {"schedule": "cosine"}
    scheduled = candidate("ddp", options=options)
    probed = dataclasses.replace(PROBED, candidates=(scheduled, *CANDIDATES[1:]))
    command = ["istbench", "run", "--steps=1000", "--set", "schedule=cosine"]
    choice = msgspec.structs.replace(
        ADVICE.best, label=scheduled.label, steps=600.0, options=options, command=command, extrapolated=False
    )
    assert probed.request(choice).steps == 1000
    assert probed.request(msgspec.structs.replace(choice, extrapolated=True)).steps == enough_steps(choice) < 1000


@pytest.mark.parametrize(
    ("options", "spreads"),
    [
        ({}, False),
        ({"lr": 0.1}, False),
        ({"schedule": "constant", "warmup": 0.1}, False),
        ({"schedule": "cosine"}, True),
        ({"warmup": 0.1}, True),
        ({"cosine_end": 0.2}, True),
    ],
)
def test_a_part_of_a_schedule_chooses_that_of_the_workload(options, spreads):
    assert is_scheduled(options) is spreads


def test_options_are_checked_over_the_defaults_of_the_workload():
    for workload, method, given in (
        ("text", "ist", {"beta2": 0.95}),
        ("text", "ddp", {"cosine_end": 0.2}),
        ("cifar10", "ddp", {"nesterov": True}),
    ):
        base = RunRequest(workload=workload, method=method, nodes=2)
        check_given(dataclasses.replace(PROBED.question, base=base, given={method: given}))
        assert Variant(method="ddp", options=given).joint_steps
    base = RunRequest(workload="toy", method="ddp", nodes=2)
    with pytest.raises(UserError, match="beta2 is an option of adam"):
        check_given(dataclasses.replace(PROBED.question, base=base, given={"ddp": {"beta2": 0.95}}))


def test_the_first_two_train_to_the_target_for_longer_than_expected(tmp_path, screen):
    backend = Fake(ddp=ramp(9.0), zero=[evaluation(0, 0.0, 0.0), evaluation(90, 5.0, 0.6)])
    found = list(measure(first_two(ADVICE), PROBED, backend, tmp_path, screen))
    assert {one.label: one.seconds for one in found} == {"ddp": pytest.approx(8.0, rel=0.05), "zero": None}
    assert [one.failure for one in found] == ["", ""]
    for request, choice in zip(backend.requests, first_two(ADVICE), strict=True):
        assert (request.method, request.target) == (choice.label, 0.8)
        assert request.steps > choice.steps
    assert "measured zero: did not reach the target" in screen.lines


def test_a_failed_run_is_recorded_and_the_next_one_still_trains(tmp_path, screen):
    backend = Fake(ddp=RunFailed("the loss became nan at step 7\nmore"), zero=ramp(9.0))
    first, second = measure(first_two(ADVICE), PROBED, backend, tmp_path, screen)
    assert first == MeasuredCandidate(label="ddp", seconds=None, failure="the loss became nan at step 7")
    assert second.seconds


def test_a_run_that_goes_on_elsewhere_has_no_truth_yet(tmp_path, screen):
    (only,) = measure(first_two(ADVICE), PROBED, Fake(ddp=None, zero=ramp(9.0)), tmp_path, screen)
    assert only.label == "zero"
    assert any(line.startswith("ddp runs on") for line in screen.lines)


def test_the_measured_ones_come_before_an_error_of_the_user(tmp_path, screen):
    measuring = measure(first_two(ADVICE), PROBED, Fake(ddp=ramp(9.0), zero=UserError("no host")), tmp_path, screen)
    assert next(measuring).label == "ddp"
    with pytest.raises(UserError, match="no host"):
        next(measuring)


def test_advice_and_truth_stay_in_a_file_whose_torn_line_is_cut_off(tmp_path):
    path = keep(tmp_path, ADVICE, {"ddp": 8.0})
    with path.open("ab") as file:
        file.write(b'{"advice":{"verd')
    keep(tmp_path, ADVICE, {"ddp": 8.0, "zero": None})
    assert path == tmp_path / LOG
    keep(tmp_path, ADVICE, {"ddp": 8.0, "zero": None})  # the same command again adds nothing
    assert [one.truth for one in read_checked(path)] == [{"ddp": 8.0}, {"ddp": 8.0, "zero": None}]
    assert {one.advice == ADVICE for one in read_checked(path)} == {True}
    path.write_bytes(b"{}\n")
    with pytest.raises(UserError, match=r"advice.jsonl, line 1.*delete the line"):
        read_checked(path)


def test_a_pipe_or_a_full_file_in_the_place_of_the_advices_is_named(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(UserError, match=r"advice.jsonl is a pipe, not a file"):
        keep(tmp_path, ADVICE, {"ddp": 8.0})
    (tmp_path / LOG).unlink()
    size = keep(tmp_path, ADVICE, {"ddp": 8.0}).stat().st_size
    monkeypatch.setattr("istbench.studies.advise.measure._MOST_BYTES", 2 * size - 1)
    with pytest.raises(UserError, match=r"advice.jsonl has .* bytes, more than"):
        keep(tmp_path, ADVICE, {"ddp": 9.0})
    assert len(read_checked(tmp_path / LOG)) == 1
