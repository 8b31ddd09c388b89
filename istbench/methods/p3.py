"""P3: priority-based parameter propagation (Jayarajan et al., MLSys 2019, arXiv 1905.03960).

P3 is `parameter_server` with two changes:

- It cuts parameters into slices. So a large parameter does not delay others, and the transfer, update and reply of
its slices overlap.
- Workers and servers send, update and reply in the order in which the next forward pass needs the slices: first
layer first. The backward pass computes gradients in the opposite order.

No slice can overtake those that a connection already holds, so a connection holds only a few at a time.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import nn

from istbench.base.decode import convert, path_text
from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, CountOrNone
from istbench.fabric import Fabric
from istbench.methods.footprint import Footprint
from istbench.methods.parameter_server import ParameterServer
from istbench.methods.served.model import ServedModel
from istbench.workloads.base import Workload

_SLICES_TRIED = (50_000, 25_000, 100_000, 200_000)
_WINDOWS_TRIED = (1, 4)
_STEPS_TRIED = 4
_WINDOW = 2


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A slice size and a window, for `autotune` to choose from."""

    slice_params: CountOrNone
    window: Count


class P3(ParameterServer):
    """A parameter server that moves small slices, the most urgent for the next forward pass first."""

    name = "p3"

    @dataclass(frozen=True, kw_only=True)
    class Options(ParameterServer.Options):
        """Options of `p3`."""

        slice_params: CountOrNone = field(
            default=50_000, metadata={"help": "parameters in a slice; 0 leaves tensors whole"}
        )
        priority: bool = field(default=True, metadata={"help": "send the most urgent slices first"})
        window: Count = field(default=_WINDOW, metadata={"help": "most slices in flight on a connection"})
        autotune: bool = field(
            default=False, metadata={"help": "try slice and window sizes before training, and use the fastest"}
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.autotune and (self.split_params or not self.slice_params):
                given = "split_params" if self.split_params else "slice_params=0"
                raise UserError(
                    f"autotune chooses a slice size, but {given} is for whole tensors; leave one of the two out"
                )
            if self.slice_params and self.split_params:
                raise UserError("split_params is for slice_params=0: slices are dealt to all servers anyway")
            if self.window != _WINDOW and not self.priority:
                raise UserError(
                    f"window={self.window} limits how far slices overtake each other, but with priority=false none "
                    "does; leave window out"
                )

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._workload, self._fabric = workload, fabric
        self._setting = Setting(slice_params=self.options.slice_params, window=self.options.window)
        if self.options.autotune:
            started = time.perf_counter()
            self._setting = self._fastest()
            self.tuning_s = fabric.maximum(time.perf_counter() - started)
        super().setup(model, workload, fabric)

    def _serve(self, model: nn.Module) -> ServedModel:
        options = self.options
        return ServedModel(
            model, self._fabric, options.build,
            split_params=options.split_params, priority=options.priority,
            slice_params=self._setting.slice_params, window=self._setting.window,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "setting": msgspec.structs.asdict(self._setting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        setting = convert(state["setting"], Setting, path_text)
        if setting != self._setting:  # the optimizer's state is cut as it was tuned then
            self._setting = setting
            super().setup(self._blank_model(), self._workload, self._fabric)
        super().load_state_dict(state)

    def _fastest(self) -> Setting:
        """The setting with the fastest steps on throw-away weights; chooses the slice size, then the window."""
        tried = {}
        for slice_params in dict.fromkeys((*_SLICES_TRIED, self.options.slice_params)):
            setting = Setting(slice_params=slice_params, window=self.options.window)
            tried[setting] = self._seconds(setting)
        best = min(tried, key=lambda setting: tried[setting])
        for window in _WINDOWS_TRIED:
            setting = Setting(slice_params=best.slice_params, window=window)
            tried[setting] = self._seconds(setting)
        return min(tried, key=lambda setting: tried[setting])

    def _seconds(self, setting: Setting) -> float:
        """Seconds of some steps with `setting` on the slowest node, so that all nodes decide alike."""
        state = torch.get_rng_state()
        self._setting = setting
        super().setup(self._blank_model(), self._workload, self._fabric)
        indices = torch.arange(min(self._workload.batch_size, self._workload.train_size))
        inputs, targets = self._workload.train_batch(indices, torch.Generator())
        batch = (inputs.to(self._fabric.device), targets.to(self._fabric.device))
        self._train_once(batch)
        self.drain()
        self._fabric.barrier("tuning")
        started = time.perf_counter()
        for _ in range(_STEPS_TRIED):
            self._train_once(batch)
        self.drain()
        torch.set_rng_state(state)
        return self._fabric.maximum(time.perf_counter() - started)

    def _blank_model(self) -> nn.Module:
        with torch.device("meta"):
            return self._workload.build_model()

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """The footprint of a parameter server, in slices."""
        options = self.options
        return self._footprint(
            model, world_size, batch_size,
            slice_params=options.slice_params, priority=options.priority, window=options.window,
        )  # fmt: skip
