"""Regret."""

import math

import pytest

from istbench.studies.advise.advice_file import regret
from istbench.studies.advise.answer import Advice, RankedChoice
from istbench.studies.advise.flips import Flip, Flips

NONE = Flip(reason="not searched")


def advice(odds, best="a"):
    choice = None if best is None else RankedChoice(method=best, label=best, options={}, command=[], nodes=2)
    return Advice(
        verdict="close", odds=odds, best=choice, others=(), flips=Flips(bandwidth=NONE, latency=NONE, nodes=NONE),
        not_tested=(), workload="speech", target=0.8, metric="accuracy", cluster="m5.2xlarge", nodes=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ({"a": 10.0, "b": 12.0}, 0.0),
        ({"a": 12.0, "b": 10.0}, pytest.approx(0.2)),
        ({"a": 10.0, "b": None}, 0.0),
        ({"a": None, "b": 10.0}, math.inf),
        ({"a": None, "b": None}, None),
        ({"b": 10.0}, None),
        ({"a": 0.0, "b": 0.0}, 0.0),
        ({"a": 1.0, "b": 0.0}, math.inf),
    ],
)
def test_regret(truth, expected):
    assert regret(advice(0.9), truth) == expected


def test_no_recommendation_has_no_regret():
    assert regret(advice(0.0, None), {"a": 1.0}) is None
