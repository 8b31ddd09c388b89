"""Options that would do nothing, or something on the clock, are refused in one line before any process starts."""

import sys
import sysconfig

import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.methods.optimizer import OF_RULES
from istbench.node.registry import build_method

TASK = """
import torch
from torch import nn

def model():
    return nn.Linear(2, 1)

def data(train):
    return [(torch.ones(4, 2), torch.ones(4, 1))] * 3

def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()

def optimizer(parameters):
    return torch.optim.AdamW(parameters)
"""


def prepare(method, *, workload="toy", **fields):
    return prepare_cell(RunRequest(workload=workload, method=method, **fields), lambda *_: None)


@pytest.mark.parametrize(("option", "value"), [("beta1", "0.8"), ("beta2", "0.9"), ("weight_decay_of", "all")])
def test_options_of_an_optimizer_are_none_of_a_task_with_its_own(tmp_path, option, value):
    (tmp_path / "mine.py").write_text(TASK)
    mine = {"workload": str(tmp_path / "mine.py"), "steps": 2, "nodes": 2}
    assert option in OF_RULES
    with pytest.raises(UserError, match=f"^--set {option}: mine has an optimizer of its own; set it there$"):
        prepare("diloco", method_options={option: value}, **mine)


@pytest.mark.parametrize("method", ["ist", "streaming_ist"])
def test_a_subnet_that_torch_would_compile_on_the_clock(method, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", sys.executable)  # stands for a compiler, which may not be here
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()
    warm = {"method_options": {"warmup_rounds": 2}, "compile": True}
    with pytest.raises(UserError, match=f"^--compile: {method} trains another model after warmup_rounds.* leave"):
        prepare(method, nodes=2, **warm)
    assert prepare(method, nodes=1, **warm).config.compile  # one node has no warm-up
    assert prepare(method, nodes=2, compile=True).config.compile
    still = {"method_options": {"ddp_rounds": 2}, "compile": True}
    assert prepare("local_sgd", nodes=2, **still).config.compile  # its model stays


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        ("p3", {"priority": False, "window": 4}, "window=4 limits how far slices overtake each other, but with"),
        ("local_sgd", {"average_optimizer": True}, "averages the state of the optimizer, but sgd without"),
        ("diloco", {"optimizer": "sgd", "average_optimizer": True}, "set momentum=0.9, or leave it out"),
    ],
)
def test_an_option_that_would_do_nothing(method, options, says):
    with pytest.raises(UserError) as refused:
        build_method(method, options)
    assert says in str(refused.value)
    assert "leave" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("p3", {"priority": False}),
        ("p3", {"priority": False, "window": 2}),
        ("local_sgd", {"momentum": 0.9, "average_optimizer": True}),
        ("diloco", {"average_optimizer": True}),
    ],
)
def test_the_same_option_where_it_works(method, options):
    built = build_method(method, options).options
    assert all(getattr(built, name) == value for name, value in options.items())
