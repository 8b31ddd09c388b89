"""The stand-in for torch's compiler: optimizers step without it, and everything else imports it."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch import nn

from istbench.launch.processes import compiler_on_demand
from istbench.launch.processes.compiler_on_demand import stand_in

SCRIPT = """
import sys
import torch
from torch import distributed, nn
import istbench.launch.processes.compiler_on_demand as on_demand
from istbench.workloads.initialise import with_storage

model = with_storage(nn.Linear(3, 2, device="meta"), torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters())

def step():
    optimizer.zero_grad()
    model(torch.ones(3)).sum().backward()
    optimizer.step()

step()
store = distributed.HashStore()
distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
nn.parallel.DistributedDataParallel(model)(torch.ones(3)).sum().backward()

@torch.compiler.disable
def plain(values):
    return values + 1

assert (plain(1), plain.__name__) == (2, "plain")
assert not on_demand.is_imported()
assert "sympy" not in sys.modules
before = model.weight.detach().clone()
compiled = torch.compile(lambda values: 2 * values, backend="eager")
assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
assert on_demand.is_imported()
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.utils.counters["frames"]["ok"] == 1
step()
assert not torch.equal(model.weight, before)
import torch._dynamo.config
"""


PARTS = """
import sys
import istbench.launch.processes.compiler_on_demand
import torch._dynamo.config
import torch._dynamo.exc as errors
from torch._dynamo import config

assert torch._dynamo.config is config is sys.modules["torch._dynamo.config"]
assert torch._dynamo.exc is errors and torch._dynamo.convert_frame.exc is errors
assert config.__spec__.origin == config.__file__
"""


@pytest.mark.processes
def test_models_optimizers_and_functions_leave_the_compiler_and_sympy_alone_until_something_needs_it():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_a_part_that_is_imported_by_its_name_is_that_of_the_compiler():
    done = subprocess.run([sys.executable, "-c", PARTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("thing", [None, int, nn.Linear(1, 1)], ids=["arguments alone", "a class", "a module"])
def test_what_is_no_function_yet_is_left_to_the_compiler_itself(monkeypatch, thing):
    itself = SimpleNamespace(disable=lambda *given, **named: (given, named))
    monkeypatch.setattr(compiler_on_demand, "_imported", lambda: itself)
    assert stand_in().disable(thing, recursive=False) == ((thing,), {"recursive": False})
    assert stand_in().disable(recursive=False) == ((None,), {"recursive": False})


def test_tools_that_ask_all_modules_for_a_name_import_nothing():
    assert not hasattr(stand_in(), "__file__")
