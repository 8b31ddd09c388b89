"""Warnings below the table of a tuning."""

from types import SimpleNamespace

import pytest

from istbench.cluster.profile import load_profile
from istbench.report.targets import EvaluationError
from istbench.studies.tuning.table import chance_line, tuning_answer
from istbench.studies.tuning.trials import Contest, Judge, Trial, Tried

BY_SECONDS = Judge(target=0.77, cluster=load_profile("m5.2xlarge"))


def contest(method, defaults, *others):
    tried = tuple(
        Tried(trial=Trial(method=method, number=number, options={"lr": number}, settings={}), value=value)
        for number, value in enumerate((defaults, *others), start=1)
    )
    return Contest(method=method, nodes=2, tried=tried, best=max(tried, key=lambda own: own.value))


@pytest.mark.parametrize(
    ("samples", "named"), [(100, "ist on 2 nodes, ddp on 2 nodes"), (10_000, "ist on 2 nodes")]
)
def test_a_gain_within_two_standard_errors_may_be_chance(samples, named):
    # At .5 the standard error is .05 on 100 samples, and .005 on 10,000.
    contests = (contest("ist", 0.5, 0.505), contest("ddp", 0.5, 0.55), contest("p3", 0.5, 0.4))
    judgement = SimpleNamespace(contests=contests, error=EvaluationError(samples=samples))
    (line,) = chance_line(judgement)
    assert f"({samples:,} samples) of the defaults: {named}. Their gain may be chance." in line


def test_nothing_is_said_where_the_error_is_unknown():
    assert not list(chance_line(SimpleNamespace(contests=(contest("ist", 0.5, 0.505),), error=None)))


def judged(*contests):
    return SimpleNamespace(
        contests=contests,
        metric=SimpleNamespace(name="accuracy", lower_is_better=False),
        header=SimpleNamespace(budget="3 epochs"),
    )


def test_the_answer_names_the_best_trial_its_defaults_and_the_next_method():
    contests = (contest("ist", 0.5, 0.6), contest("ddp", 0.5, 0.55), contest("p3", 0.5, 0.4))
    assert tuning_answer(judged(*contests), Judge()) == (
        "ist with lr=2 is the best of 2 trials of each of ist, ddp and p3, by one seed: "
        "accuracy 0.600 after 3 epochs; its defaults 0.500, ddp 0.550 at best."
    )


def test_the_answer_of_one_method_counts_its_trials():
    assert tuning_answer(judged(contest("ist", 0.5, 0.6)), Judge()) == (
        "ist with lr=2 is the best of 2 trials, by one seed: accuracy 0.600 after 3 epochs; its defaults 0.500."
    )


@pytest.mark.parametrize(
    ("judge", "failed", "said"),
    [
        (Judge(), False, "No trial of ist and ddp has accuracy after 3 epochs."),
        (Judge(), True, "No trial of ist and ddp has accuracy after 3 epochs, and 4 failed."),
        (BY_SECONDS, False, "No trial of ist and ddp reached accuracy 0.77."),
        (BY_SECONDS, True, "No trial of ist and ddp reached accuracy 0.77, and 4 failed."),
    ],
)
def test_the_answer_says_that_no_trial_has_a_result(judge, failed, said):
    lost = (Tried(trial=None, failed=failed),) * 2
    contests = [Contest(method=name, nodes=2, tried=lost, best=None) for name in ("ist", "ddp")]
    assert tuning_answer(judged(*contests), judge) == said
