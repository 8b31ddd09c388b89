"""Regret, and how often odds were right."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from istbench.studies.advise.answer import Advice, RankedChoice
from istbench.studies.advise.flips import Flips, none_since
from istbench.studies.advise.regret import MeasuredAdvice, calibration, regret

NONE = none_since("not searched")


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


def test_odds_are_counted_by_bins():
    right, wrong, single = {"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}, {"a": 1.0}
    checked = [
        MeasuredAdvice(advice=advice(odds), truth=truth)
        for odds, truth in ((0.9, right), (0.94, wrong), (0.92, single), (1.0, right), (0.55, wrong), (0.5, right))
    ]
    found = calibration(checked)
    assert [(one.low, one.high, one.advised, one.right) for one in found] == [
        (0.5, 0.6, 2, 1),
        (0.9, 0.95, 2, 1),
        (0.95, 1.0, 1, 1),
    ]
    assert found[1].expected == pytest.approx(1.84)
    again = msgspec.json.decode(msgspec.json.encode(checked), type=list[MeasuredAdvice])
    assert calibration(again) == found


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30))
def test_each_checked_advice_is_in_one_bin(pairs):
    checked = [
        MeasuredAdvice(advice=advice(odds), truth={"a": 1.0, "b": 2.0 if hit else 0.5}) for odds, hit in pairs
    ]
    found = calibration(checked)
    assert sum(one.advised for one in found) == len(pairs)
    assert sum(one.right for one in found) == sum(hit for _, hit in pairs)
    assert all(one.low * one.advised <= one.expected + 1e-9 for one in found)
