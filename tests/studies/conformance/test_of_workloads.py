"""Checks of a workload that breaks the contract."""

import pytest
import torch

from istbench.studies.conformance.check import check_workload
from istbench.studies.conformance.of_workloads import (
    DoesNotHold,
    rows_are_the_full_models_rows,
    shares_of_the_samples_give_the_metrics_of_all,
    the_metric_is_reported,
)
from istbench.studies.conformance.training import open_workload


def test_metrics_that_are_no_means_are_caught():
    workload = open_workload("toy", {})
    workload.evaluate = lambda model, batches: {"accuracy": sum(len(labels) for _, labels in batches)}
    with pytest.raises(DoesNotHold, match="accuracy of a third and the rest of a batch comes to"):
        shares_of_the_samples_give_the_metrics_of_all(workload)


def test_a_metric_of_any_range_and_direction_is_one():
    workload = open_workload("toy", {})
    workload.metric, workload.lower_is_better, workload.targets = "loss", True, (0.9, 0.5)
    assert the_metric_is_reported(workload).endswith("before training, lower is better")
    workload.lower_is_better = False
    with pytest.raises(
        DoesNotHold, match="every target is reached before training: loss is .*; correct lower_is_better"
    ):
        the_metric_is_reported(workload)
    workload.evaluate = lambda model, batches: {"loss": float("inf")}
    with pytest.raises(DoesNotHold, match="loss is inf before training; it must be a finite number"):
        the_metric_is_reported(workload)


def test_a_parameter_without_dimensions_has_no_rows_to_compare():
    workload = open_workload("toy", {})
    build = workload.build_model

    def scaled():
        model = build()
        model.scale = torch.nn.Parameter(torch.ones(()))
        return model

    def initial_rows(model, name, rows, seed):
        whole = torch.rand(model.get_parameter(name).shape, generator=torch.Generator().manual_seed(seed))
        return whole if rows is None else whole[rows]

    workload.build_model, workload.initial_rows = scaled, initial_rows
    assert rows_are_the_full_models_rows(workload) == "made alone or whole, bit for bit"


RAISES = """
from istbench.workloads.toy import Toy

class Raises(Toy):
    name = "raises"

    def loss(self, model, batch):
        raise RuntimeError("first line\\nsecond line")
"""


def test_what_a_plugin_raises_is_a_check_that_failed(tmp_path):
    plugin = tmp_path / "raises.py"
    plugin.write_text(RAISES)
    outcomes = {outcome.name: outcome for outcome in check_workload("raises", plugins=(str(plugin),))}
    learns = outcomes["every parameter learns"]
    said = "plug-in raises.py, line 8, in loss: RuntimeError: first line"
    assert (learns.outcome, learns.detail) == ("failed", said)
    assert outcomes["batches repeat"].outcome == "holds"
