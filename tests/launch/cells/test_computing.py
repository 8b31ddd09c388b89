"""What a machine cannot compute is refused before training."""

import pytest
import torch
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell

METHOD = """
from istbench.methods.local_sgd import LocalSGD
class Steady(LocalSGD):
    name = 'steady'
    scheduled = False
"""


def prepare(method="ddp", **fields):
    return prepare_cell(RunRequest(workload="toy", method=method, **fields), lambda *_: None)


def test_half_precision_that_a_machine_lacks(monkeypatch):
    assert prepare(amp="bf16").config.amp == "bf16"

    def lacking(*_, **__):
        raise NotImplementedError('"conv" not implemented for Half')

    monkeypatch.setattr(F, "conv2d", lacking)
    with pytest.raises(UserError, match="^--amp fp16: torch on .* does not support torch.float16; use --amp bf16$"):
        prepare(amp="fp16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(UserError, match="^--amp bf16: this GPU does not support torch.bfloat16; use --amp fp16$"):
        prepare(amp="bf16", device="cuda")


def test_a_compiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no-such-compiler is missing; install one, name it in CXX, or leave"):
        prepare(compile=True)


def test_a_method_that_keeps_its_learning_rate_refuses_a_schedule(tmp_path):
    plugin = tmp_path / "steady.py"
    plugin.write_text(METHOD)
    assert prepare("steady", plugins=(str(plugin),)).config.method == "steady"
    with pytest.raises(UserError, match="^method 'steady' has a constant learning rate; use --set warmup=0$"):
        prepare("steady", plugins=(str(plugin),), method_options={"warmup": "0.1"})
