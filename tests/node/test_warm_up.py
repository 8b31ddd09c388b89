"""The steps before the clock starts. Functions named `node_*` run on every node."""

import pytest

from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.ist import IndependentSubnetTraining
from istbench.node.destinations import Destinations
from istbench.node.setup import warm_up
from istbench.node.worker import RankTraining
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload

pytestmark = pytest.mark.processes


def node_warmed(fabric, warmup_rounds):
    """The values of a matrix in each step of the warm-up, and in the step that was counted."""
    request = RunRequest(
        workload="toy",
        method="ist",
        nodes=2,
        steps=40,
        method_options={"warmup_rounds": warmup_rounds},
        threads=1,
    )
    config = prepare_cell(request, lambda *_: None).config
    seen, step = [], IndependentSubnetTraining.step

    def noted(method, batch):
        seen.append(method.state_dict()["subnet"]["linear2.weight"].numel())
        return step(method, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndependentSubnetTraining, "step", noted)
        counted = warm_up(config, open_workload("toy", {}), fabric)
    return seen, counted.work.operations


def test_the_whole_model_of_a_warm_up_is_warm_too_and_the_counted_step_is_a_later_one():
    (without, operations), (warm, same) = (on_nodes(node_warmed, 2, rounds)[0] for rounds in (0, 3))
    assert (without, warm) == ([8 * 8], [16 * 16, 8 * 8])
    assert same == operations


COUNTS = """
import torch
from torch import nn
from torch.nn import functional as F

STEP = 0

def model():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

def data(train):
    return [(torch.arange(12.0).reshape(4, 3) + step) / 9 for step in range(3)]

def loss(model, batch):
    global STEP
    with open({path!r}, "a") as file:
        file.write(f"{{STEP}} {{int(torch.is_grad_enabled())}}\\n")
    STEP += 1
    return F.mse_loss(model(batch), batch)
"""


@pytest.mark.parametrize("method", ["ddp", "local_sgd"])
def test_a_counter_of_the_users_loss_begins_with_the_first_step_of_training(tmp_path, method):
    calls, task = tmp_path / "calls", tmp_path / "counts.py"
    task.write_text(COUNTS.format(path=str(calls)))
    request = RunRequest(workload=str(task), method=method, steps=4, eval_every=2, threads=1)
    config = prepare_cell(request, lambda *_: None).config
    (tmp_path / "run").mkdir()
    on_nodes(node_trained, 1, config, tmp_path / "run")
    trained = [line.split()[0] for line in calls.read_text().splitlines() if line.endswith(" 1")]
    assert trained[-4:] == ["0", "1", "2", "3"]


def node_trained(fabric, config, folder):
    workload = open_workload(config.workload, {}, config.plugins)
    RankTraining(RunDirectory(folder), config, workload, fabric, Destinations([])).train()
