"""Attributes that a forward pass changes go on in a resumed run. Functions named `node_*` run on every node."""

import pytest
import torch
from ranks import Kept, StopsAt
from torch import nn

from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.destinations import Destinations
from istbench.node.own_attributes import OwnAttributes
from istbench.node.worker import RankTraining
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload, through_disk

TASK = """
import torch
from torch import nn
from torch.nn import functional as F

class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(3, 3), 0

    def forward(self, inputs):
        self.calls += self.training
        return self.linear(inputs) * (1 + self.calls / 10)

def model():
    return Growing()

def data(train):
    return [(torch.arange(12.0).reshape(4, 3) + step) / 9 for step in range(4)]

def loss(model, batch):
    return F.mse_loss(model(batch), batch)
"""


class Counting(nn.Module):
    """It counts its calls, and remembers their outputs."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.phase, self.sums, self._last = nn.Linear(2, 2), 0, "cold", [], None
        self.mean, self.table, self.scale = torch.zeros(2), torch.ones(3), 2.0

    def forward(self, inputs):
        self.calls += 1
        self.phase = "warm"
        self.sums.append([float(inputs.sum()), inputs.sum()])
        self._last = self.linear(inputs)
        self.mean.mul_(0.5).add_(self._last.detach().mean(0))
        return self._last


def model():
    torch.manual_seed(0)
    return nn.Sequential(Counting(), nn.BatchNorm1d(2))


def test_those_that_change_go_through_a_checkpoint_and_no_others():
    trained, resumed = model(), model()
    attributes = OwnAttributes(trained)
    assert attributes.changed() == {}
    for _ in range(3):
        trained(torch.ones(4, 2))
    saved = through_disk({"attributes": attributes.changed()}, 0)["attributes"]
    assert {name: sorted(own) for name, own in saved.items()} == {"0": ["_last", "calls", "mean", "phase", "sums"]}
    after = OwnAttributes(resumed)
    after.restore(saved)
    assert (resumed[0].calls, resumed[0].phase, resumed[0].sums) == (3, "warm", [[8.0, torch.tensor(8.0)]] * 3)
    assert torch.equal(resumed[0].mean, trained[0].mean)
    assert torch.equal(resumed[0]._last, trained[0]._last)
    trained(torch.ones(4, 2))
    resumed(torch.ones(4, 2))
    assert torch.equal(resumed[0].mean, trained[0].mean)
    assert after.changed().keys() == {"0"}


def test_views_of_weights_come_with_the_weights():
    plain = nn.Linear(2, 2)
    plain.rows, plain.weights = plain.weight[0], [plain.weight, plain.bias]
    attributes = OwnAttributes(plain)
    with torch.no_grad():
        plain.weight.fill_(3)
    assert attributes.changed() == {}


def node_trained(fabric, config, folder):
    """The digest of the weights after a run that never stops, and after one that stops and resumes."""
    digests = []
    for name, stops in (("whole", [None]), ("resumed", [2, None])):
        kept = Kept()
        for stop in stops:
            workload = open_workload(config.workload, {}, config.plugins)
            sinks = Destinations([kept] if fabric.rank == 0 else [])
            stopping = StopsAt(stop) if stop else None
            RankTraining(RunDirectory(folder / name), config, workload, fabric, sinks, stopping).train()
        digests.append(kept.result and kept.result.weights_sha256)
    return digests


@pytest.mark.processes
@pytest.mark.parametrize(("method", "options"), [("ddp", {}), ("local_sgd", {"local_steps": 2})])
def test_a_resumed_run_trains_by_the_counters_of_the_model_as_one_that_never_stops(tmp_path, method, options):
    task = tmp_path / "growing.py"
    task.write_text(TASK)
    request = RunRequest(workload=str(task), method=method, method_options=options, nodes=2, steps=4, threads=1)
    config = prepare_cell(request, lambda *_: None).config
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole, resumed = on_nodes(node_trained, 2, config, tmp_path)[0]
    assert resumed == whole
