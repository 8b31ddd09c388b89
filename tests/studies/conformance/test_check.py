"""The conformance checks hold for what is built in, and fail for what breaks the contract."""

import re

import pytest
import torch

from istbench.base.errors import RunFailed
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.registry import registered
from istbench.studies.conformance.check import check_method, check_workload
from istbench.studies.conformance.of_methods import CheckedMethod, rounds_have_the_declared_length
from istbench.studies.conformance.of_workloads import CHECKS, DoesNotHold, permuting_hidden_units_changes_nothing
from istbench.studies.conformance.training import open_workload
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot

# Methods that one node does not train plainly: by active outputs, or with an outer step.
UNCLAIMED = ("diloco", "dslide", "noloco", "sampled_softmax", "sparseloco", "streaming_diloco")


@pytest.mark.processes
@pytest.mark.parametrize("name", [entry.name for entry in registered("methods")])
def test_every_installed_method_keeps_the_contract(name):
    found = list(check_method(name, nodes=3))
    outcomes = {outcome.name: outcome.outcome for outcome in found}
    unclaimed = {"one node is plain training"} if name in UNCLAIMED else set()
    assert {check for check, outcome in outcomes.items() if outcome == "skipped"} == unclaimed
    assert [str(one) for one in found if one.outcome == "failed"] == []


LOW_RANK = {"compress": "powersgd", "rank": "1", "least_compression": "0.5"}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ddp", {"accumulate": "2", "start_compress": "3", **LOW_RANK}),
        ("zero", {"accumulate": "4", "compress": "bf16"}),
        ("local_sgd", {"local_steps": "2", "ddp_rounds": "2"}),
    ],
)
def test_options_that_change_the_exchange_keep_the_contract(name, options):
    outcomes = {outcome.name: outcome.outcome for outcome in check_method(name, nodes=2, options=options)}
    assert outcomes.pop("one node is plain training") == "skipped"
    assert set(outcomes.values()) == {"holds"}, outcomes


@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "layers": 3, "bias": False}])
def test_the_toy_workload_keeps_the_contract(options):
    workload = open_workload("toy", options)
    for check in CHECKS:
        assert check(workload)


def test_checks_of_a_workload_are_reported():
    assert [outcome.outcome for outcome in check_workload("toy")] == ["holds"] * len(CHECKS)


def test_a_group_that_forgets_a_slot_is_caught():
    workload = open_workload("toy", {})
    workload.neuron_groups = lambda model: [NeuronGroup("hidden1", 16, (Slot("linear1.weight", 0),))]
    with pytest.raises(DoesNotHold, match="hidden1"):
        permuting_hidden_units_changes_nothing(workload)


BROKEN = """
import torch
from istbench.methods.local_sgd import LocalSGD

class Broken(LocalSGD):
    name = "broken"

    def load_state_dict(self, state):
        self._model.load_state_dict(state["model"])  # forgets where in the round it is

    def step(self, batch):
        loss = super().step(batch)
        if self._fabric.rank == 0:
            self._fabric.traffic["training"].sent += 8  # bytes that no one receives
        return loss

    def close_round(self):
        if self._steps == self.round_steps:
            super().close_round()  # and inside a round exchanges nothing
"""


@pytest.mark.processes
def test_a_method_that_breaks_the_contract_fails_the_checks_it_breaks(tmp_path):
    plugin = tmp_path / "broken.py"
    plugin.write_text(BROKEN)
    outcomes = {outcome.name: outcome for outcome in check_method("broken", nodes=2, plugins=(str(plugin),))}
    assert outcomes["resumed run is the run"].outcome == "failed"
    assert "resumed at step" in outcomes["resumed run is the run"].detail
    assert outcomes["bytes sent are bytes received"].outcome == "failed"
    assert outcomes["rounds have the declared length"].outcome == "failed"
    assert "closing a round early" in outcomes["rounds have the declared length"].detail
    assert outcomes["same seed same curve"].outcome == "holds"


OF_BEFORE = """
from istbench.methods.base import Method
from istbench.methods.local_sgd import LocalSGD

class OfBefore(LocalSGD):
    name = "of_before"
    round_steps = Method.round_steps  # says nothing of its rounds, of 4 local steps

    def step(self, batch):
        loss = super().step(batch)  # of rounds of one step, each closed
        self._done = getattr(self, "_done", 0) + 1
        if self._done % 4 == 0:
            self._average()
        return loss

    def close_round(self):
        self._steps = 0
"""


@pytest.mark.processes
def test_rounds_that_a_method_does_not_tell_are_caught(tmp_path):
    plugin = tmp_path / "of_before.py"
    plugin.write_text(OF_BEFORE)
    wrong = "rounds should have 1 local steps, but their ends are marked after steps [4, 8]"
    with pytest.raises(RunFailed, match=re.escape(wrong)):
        on_nodes(rounds_have_the_declared_length, 2, CheckedMethod("of_before", (str(plugin),)))


def test_initial_rows_do_not_depend_on_torch_state():
    workload = open_workload("toy", {})
    with torch.device("meta"):
        model = workload.build_model()
    torch.manual_seed(1)
    one = workload.initial_rows(model, "linear1.weight", None, 0)
    torch.manual_seed(2)
    assert torch.equal(one, workload.initial_rows(model, "linear1.weight", None, 0))
