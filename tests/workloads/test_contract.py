"""What a plug-in's workload gives, taken as numbers or refused in one line that names it."""

import math
from itertools import islice

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from istbench.base.errors import UserError, shown
from istbench.workloads.contract import (
    blank_model,
    check_attributes,
    check_target,
    checked_metrics,
    checked_source,
    checked_targets,
    some_test_batches,
)
from istbench.workloads.toy import Toy


def toy(**attributes):
    return type("Own", (Toy,), {"name": "own", **attributes})()


NAMED = "name it in one line of at most 4,096 letters"


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64)]
)
def test_a_metric_of_one_number_is_that_number(value):
    found = checked_metrics(toy(), {"accuracy": value, "top": 1})
    assert found == {"accuracy": 0.5, "top": 1.0}
    assert all(type(number) is float for number in found.values())


def test_a_metric_that_is_not_a_number_stays_so():
    assert math.isnan(checked_metrics(toy(), {"accuracy": torch.tensor(math.nan)})["accuracy"])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "evaluate must return a dictionary of metrics, not None"),
        ({"loss": 1.0}, "evaluate must return its metric 'accuracy'; it returns loss"),
        ({}, "evaluate must return its metric 'accuracy'; it returns nothing"),
        ({"accuracy": "0.5"}, "evaluate returns metric 'accuracy' as '0.5'; return a number"),
        ({"accuracy": None}, "evaluate returns metric 'accuracy' as None; return a number"),
        ({"accuracy": True}, "evaluate returns metric 'accuracy' as True; return a number"),
        (
            {"accuracy": torch.ones(3)},
            "evaluate returns metric 'accuracy' as a Tensor of shape (3,); return a number",
        ),
        ({"accuracy": 10**400}, f"evaluate returns metric 'accuracy' as {shown(10**400)}; return a number"),
        *(
            ({"accuracy": 1.0, name: 1.0}, f"evaluate returns a metric under {shown(name)}; {NAMED}")
            for name in (7, "", "x" * 4097, "\u202etop", "a\nb", "\ud800")
        ),
    ],
)
def test_other_metrics_are_refused_by_workload_and_metric(found, said):
    with pytest.raises(UserError) as refused:
        checked_metrics(toy(), found)
    assert str(refused.value) == f"workload 'own': {said}"


@pytest.mark.parametrize(
    "targets", [(0.5, 0.8), [0.8, 0.5], {0.5, 0.8}, np.array([0.5, 0.8]), torch.tensor([0.5, 0.8])]
)
def test_targets_are_rising_levels(targets):
    assert checked_targets(toy(targets=targets)) == pytest.approx((0.5, 0.8))
    assert all(type(level) is float for level in checked_targets(toy(targets=targets)))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (0.5, "targets must be levels of its metric, such as (0.5, 0.8), not 0.5"),
        (None, "targets must be levels of its metric, such as (0.5, 0.8), not None"),
        ("0.5", "targets must be levels of its metric, such as (0.5, 0.8), not '0.5'"),
        (("0.5",), "targets must be levels of its metric, such as (0.5, 0.8), not ('0.5',)"),
        ((0.5, math.inf), "a target must be a finite number, not inf"),
        ((math.nan,), "a target must be a finite number, not nan"),
    ],
)
def test_other_targets_are_refused(targets, said):
    with pytest.raises(UserError) as refused:
        checked_targets(toy(targets=targets))
    assert str(refused.value) == f"workload 'own': {said}"


def test_targets_that_no_header_takes_are_refused():
    with pytest.raises(UserError, match="^workload 'own': targets must have at most 100 of them, not "):
        checked_targets(toy(targets=range(101)))


def test_targets_of_any_metric_come_with_the_easiest_first():
    assert checked_targets(toy(targets=(50, -3.0, 80), metric="score")) == (-3.0, 50.0, 80.0)
    assert checked_targets(toy(targets=(1.5, 2.0, 0), metric="loss", lower_is_better=True)) == (2.0, 1.5, 0.0)


def test_a_target_in_percent_is_refused_where_targets_are_shares():
    with pytest.raises(UserError) as refused:
        check_target(toy(), 77)
    assert str(refused.value) == (
        "--target 77: the targets of own are shares, accuracy 0.5, 0.8; write 77 % as 0.77"
    )
    for other in (
        toy(targets=()),
        toy(targets=(50, 80)),
        toy(metric="score"),
        toy(metric="loss", lower_is_better=True),
    ):
        check_target(other, 77)
    check_target(toy(), 0.77)
    with pytest.raises(UserError, match="--target 1e\\+09: .* use one of at most 1$"):
        check_target(toy(), 1e9)


def test_a_metric_that_falls_by_its_name_needs_a_direction():
    with pytest.raises(UserError) as refused:
        check_attributes(toy(metric="perplexity"))
    assert str(refused.value) == (
        "workload 'own': its metric 'perplexity' falls as a model gets better, by its name; set lower_is_better = "
        "True beside it, or False if it rises"
    )
    for direction in (True, False):
        check_attributes(toy(metric="perplexity", lower_is_better=direction, unit="words"))
    workload = toy(metric="perplexity")
    workload.lower_is_better = True  # of the object
    check_attributes(workload)


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("batch_size", "16", "batch_size must be a whole number, not '16'"),
        ("batch_size", 0, "batch_size must be a whole number of at least 1, not 0"),
        ("epochs", None, "epochs must be a number, not None"),
        ("metric", None, "metric must be text, not None"),
        ("lower_is_better", 1, "lower_is_better must be true or false, not 1"),
        ("unit", None, "unit must be text, not None"),
    ],
)
def test_attributes_of_another_kind_are_refused(attribute, value, said):
    check_attributes(toy())
    with pytest.raises(UserError) as refused:
        check_attributes(toy(**{attribute: value}))
    assert str(refused.value) == f"workload 'own': {said}"


def test_a_data_set_without_samples_is_refused(tmp_path):
    workload = toy()
    source = workload.prepare(None, tmp_path, lambda *_: None)
    assert checked_source(workload, source) == source
    for change, said in (
        ({"train": 0}, "workload 'own' has no train samples: its data set is empty; add samples"),
        ({"test": 0}, "workload 'own' has no test samples: its data set is empty; add samples"),
        ({"train": -1}, "workload 'own': train of its DataSource must be a whole number of at least 0, not -1"),
        ({"train": torch.tensor(3)}, "workload 'own': prepare returns a DataSource that is not valid JSON: "),
    ):
        with pytest.raises(UserError) as refused:
            checked_source(workload, msgspec.structs.replace(source, **change))
        assert str(refused.value).startswith(said)
    with pytest.raises(UserError, match="prepare must return a DataSource, not None"):
        checked_source(workload, None)


def test_a_test_split_without_batches_is_refused(tmp_path):
    workload = toy()
    workload.open(workload.prepare(None, tmp_path, lambda *_: None))
    whole = [len(targets) for _, targets in workload.test_batches()]
    assert [len(targets) for _, targets in some_test_batches(workload)] == whole
    with pytest.raises(UserError, match="test_batches yields no batch"):
        next(islice(some_test_batches(toy(test_batches=lambda self: [])), 1))


@pytest.mark.parametrize("model", [None, "net", nn.ReLU()])
def test_what_is_no_model_to_train_is_refused(model):
    with pytest.raises(UserError, match="build_model must return a torch.nn.Module to train, not "):
        blank_model(toy(build_model=lambda self: model), data_known=True)
