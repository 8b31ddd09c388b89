"""istbench's own calls of a task file's functions leave no trace in the state that they keep."""

import random

import numpy as np
import pytest
import torch

from istbench.methods.local_sgd import LocalSGD
from istbench.node.evaluate import calibrated, evaluate
from istbench.node.registry import build_workload
from istbench.node.rehearsal import rehearse

FILE = """
import itertools
import random
import sys
from types import SimpleNamespace
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
import counted_beside

batch_size = 4
STEP, SEEN, BY_NAME = 0, [], {}
# From Python 3.14 on, nobody can copy a count.
NUMBERS = itertools.count() if sys.version_info < (3, 14) else iter(range(1000))
DRAWS, STATE, TOTAL, ROWS = np.random.default_rng(0), SimpleNamespace(step=0), torch.zeros(()), np.zeros(2)

class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        Net.calls += 1
        return self.last(self.norm(self.first(x)))

def model():
    return Net()

def data(train):
    points = torch.arange(60.0).reshape(20, 3) / 30
    return TensorDataset(points, (points.sum(1) > 3).long())

def counting():
    inside = 0

    def count():
        nonlocal inside
        inside += 1
        return inside - 1

    return count

count = counting()

def loss(model, batch):
    global STEP
    loss.seen = (
        STEP, len(SEEN), BY_NAME.get("step", 0), next(NUMBERS), STATE.step, int(TOTAL), int(ROWS[0]), Net.calls,
        loss.calls, count(), counted_beside.STEPS, round(DRAWS.random(), 6), random.random(), np.random.rand(),
    )
    STEP += 1
    SEEN.append(STEP)
    BY_NAME["step"] = BY_NAME.get("step", 0) + 1
    STATE.step += 1
    TOTAL.add_(1)
    ROWS[0] += 1
    loss.calls += 1
    counted_beside.STEPS += 1
    return F.cross_entropy(model(batch[0]), batch[1]) * (1 + STEP)

loss.calls = 0
"""
CALLS = slice(0, 11)  # the counters among the values that the loss sees


@pytest.fixture
def task(tmp_path):
    (tmp_path / "counted_beside.py").write_text("STEPS = 0\n")
    path = tmp_path / "counts.py"
    path.write_text(FILE)
    workload = build_workload(str(path), {})
    workload.open(workload.prepare(None, tmp_path, lambda *_: None))
    return workload


def seen(task):
    """The values that the next call of the loss sees, which counts itself."""
    task.loss(task.own_model(0), task.example_batch(None))
    return task.file.function("loss").seen


def test_the_first_step_of_training_sees_the_state_of_the_import(task):
    with task.state_kept():
        first = seen(task)
    with task.state_kept():
        rehearse(task, LocalSGD)
        model = task.own_model(0)
        assert seen(task) != first
        assert task.found_groups().groups
    assert first[CALLS] == (0,) * 11
    torch.manual_seed(0)
    found = seen(task)
    assert found[:12] == first[:12]
    assert seen(task)[CALLS] == (1,) * 11
    with calibrated(model, task, 0, torch.device("cpu")):
        evaluate(model, task, torch.device("cpu"))
    assert seen(task)[CALLS] == (2,) * 11


def test_a_rehearsal_draws_no_random_number_of_training(task):

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    rehearse(task, LocalSGD)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


PLAIN = """
class Plain(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()

def model():
    return torch.compile(Plain(3, 2), backend="eager")
"""


def test_a_compiled_model_finds_the_functions_that_torch_put_into_the_globals(tmp_path):
    (tmp_path / "counted_beside.py").write_text("STEPS = 0\n")
    path = tmp_path / "compiled.py"
    path.write_text(FILE + PLAIN)
    workload = build_workload(str(path), {})
    workload.open(workload.prepare(None, tmp_path, lambda *_: None))
    model = workload.own_model(0)
    with workload.state_kept():
        once = model(torch.ones(1, 3))
    assert torch.equal(model(torch.ones(1, 3)), once)
