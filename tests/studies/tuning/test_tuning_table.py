"""Warnings below the table of a tuning."""

from types import SimpleNamespace

import pytest

from istbench.report.targets import EvaluationError
from istbench.studies.tuning.judge import Contest
from istbench.studies.tuning.table import chance_line
from istbench.studies.tuning.trials import Tried


def contest(method, defaults, *others):
    tried = tuple(Tried(trial=None, nodes=2, value=value) for value in (defaults, *others))
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
