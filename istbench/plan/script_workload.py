"""A recorded script in place of a workload: the sizes of its model, without data, loss and metric."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.data_source import DataSource
from istbench.cluster.script_record import RecordedTensor, ScriptRecord
from istbench.methods.base import CutsUnits, Method, OwnKernels
from istbench.methods.optimizer import RULES, ClippedOptions
from istbench.workloads.base import Batch, Progress, Workload

_BY_STATE: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "momentum": 0.0},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "adamw"},
)


class ScriptWorkload(Workload):
    """The workload of a recorded script, for plans. Its batch is the script's own."""

    name = "script"
    batch_size = 1

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """A script has its own options."""

    def __init__(self, record: ScriptRecord) -> None:
        super().__init__()
        self.record = record

    def build_model(self) -> nn.Module:
        """The modules of the recorded model with their parameters and buffers; it computes nothing."""
        containers = {module.name: module.container for module in self.record.modules}
        model = nn.ModuleList() if containers.get("") else nn.Module()
        for name in containers:
            _module(model, name, containers)
        for parameter in sorted(self.record.parameters, key=lambda parameter: parameter.place):
            value = nn.Parameter(_empty(parameter), requires_grad=parameter.trained)
            for name in parameter.names:
                owner, _, short = name.rpartition(".")
                _module(model, owner, containers)._parameters[short] = value
        for buffer in self.record.buffers:
            owner, _, short = buffer.names[0].rpartition(".")
            _module(model, owner, containers)._buffers[short] = _empty(buffer)
        return model

    def method_defaults(self, method: str) -> dict[str, Any]:
        """The optimizer that keeps as much state as the script's own."""
        record = self.record
        rules = {rule.made_by.__name__: name for name, rule in RULES.items()}
        own = rules.get(record.optimizers[0]) if len(set(record.optimizers)) == 1 else None
        if own is None or own == "sgd":
            return _BY_STATE[min(record.state_tensors, len(_BY_STATE) - 1)]
        return {"optimizer": own}

    @property
    def train_size(self) -> int:
        _refuse()

    def prepare(self, data: Path | None, cache: Path, progress: Progress) -> DataSource:
        """A script prepares its own data."""
        _refuse()

    def open(self, source: DataSource) -> None:
        """A script opens its own data."""
        _refuse()

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """A script makes its own batches."""
        _refuse()

    def test_batches(self) -> Iterator[Batch]:
        """A script evaluates by itself."""
        _refuse()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """A script computes its own loss."""
        _refuse()

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """A script evaluates by itself."""
        _refuse()


def check_record(method: type[Method], record: ScriptRecord) -> None:
    """Refuse a method that cannot train `record`, or whose exchange does not follow from the sizes of its model.

    Raises:
        UserError: naming the reason and the way out.
    """
    reason = (
        "cuts the model by groups of neurons"
        if issubclass(method, CutsUnits)
        else "computes with kernels of its own"
        if issubclass(method, OwnKernels)
        else ""
    )
    if reason:
        raise UserError(f"{method.name} {reason}, and sizes and times do not tell them; train it as a workload")
    if record.clips and not issubclass(method.Options, ClippedOptions):
        raise UserError(
            f"{method.name} updates a parameter before the last gradient is known, and {record.script} clips by "
            "the norm of all gradients; choose another method"
        )


def _module(model: nn.Module, name: str, containers: dict[str, bool]) -> nn.Module:
    """The module `name` in `model`, made with its parents if it is missing."""
    found, path = model, ""
    for part in name.split(".") if name else ():
        path = f"{path}.{part}" if path else part
        if part not in found._modules:
            found._modules[part] = nn.ModuleList() if containers.get(path) else nn.Module()
        child = found._modules[part]
        assert child is not None
        found = child
    return found


def _empty(tensor: RecordedTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")


def _refuse() -> NoReturn:
    raise RuntimeError("a recorded script has no data and no loss")
