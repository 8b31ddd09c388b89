"""ZeRO's first stage: torch's ZeroRedundancyOptimizer over DistributedDataParallel, as users run it.

Every node keeps the whole model and averages gradients as in `ddp`. One node alone keeps the optimizer state of a
parameter, updates it and broadcasts it (Rajbhandari et al., SC 2020). torch deals out whole parameters, the largest
first, to the node with the fewest values so far. If one parameter is most of the model, one node has most of the
state. The parameters of a node are one buffer and one broadcast.

BatchNorm: as in `ddp`.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from istbench.base.errors import UserError
from istbench.fabric import Fabric, Pending
from istbench.methods.buckets import BucketOptions, planned_averages
from istbench.methods.data_parallel import DataParallel
from istbench.methods.footprint import Footprint, tensor_bytes, trained
from istbench.methods.planned_node import averaged_rounds, dealt_out
from istbench.workloads.base import Workload


class ZeroRedundancy(DataParallel):
    """Data parallel with the optimizer state of each parameter on one node only."""

    name = "zero"
    narrow_control = False
    own_object = "moved"
    own_updates = "builds an optimizer over the parameters of each node"

    def build_optimizer(self, model: nn.Module, workload: Workload) -> "_Optimizer":
        return _Optimizer(trained(model), self.options, self._fabric)

    @property
    def _own_optimizer(self) -> torch.optim.Optimizer:
        own: torch.optim.Optimizer = self._optimizer.optim
        return own

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "parameters": self._names(self._own_optimizer.param_groups)}

    def _names(self, groups: Sequence[dict[str, Any]]) -> list[list[str]]:
        names = {own: name for name, own in self._model.named_parameters()}
        return [[names[own] for own in group["params"]] for group in groups]

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        slots: dict[str, Any] = {}
        for state in states:
            saved = state["optimizer"]["state"]
            for index, name in enumerate(itertools.chain.from_iterable(state["parameters"])):
                slots |= {name: saved[str(index)]} if str(index) in saved else {}
        dealt = self._names(self._optimizer._partition_parameters()[rank])
        groups, kept, count = [], dict[str, Any](), itertools.count()
        for settings, names in zip(states[0]["optimizer"]["param_groups"], dealt, strict=True):
            numbers = [next(count) for _ in names]
            groups.append({**settings, "params": numbers})
            numbered = zip(names, numbers, strict=True)
            kept |= {str(number): slots[name] for name, number in numbered if name in slots}
        optimizer = {"state": kept, "param_groups": groups}
        return {**super().resharded(states, rank), "optimizer": optimizer, "parameters": dealt}

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        return keys[0] == "model" and super().is_shared(keys)  # the optimizer's state is dealt out

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        kinds = {str(parameter.dtype) for parameter in trained(model)}
        if len(kinds) != 1:
            found = ", ".join(sorted(kinds)) or "none"
            raise UserError(f"zero trains parameters of one type; workload {workload.name!r} has {found}")

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """The footprint of `ddp`, with the optimizer state of the fullest node and a broadcast from every node."""
        whole = super().footprint(model, workload, world_size, batch_size)
        parameters = trained(model)
        dealt = dealt_out([parameter.numel() for parameter in parameters], world_size)
        shares = [[parameters[number] for number in share] for share in dealt]
        fullest = max(shares, key=tensor_bytes)
        averages = planned_averages(parameters, self.options)
        return dataclasses.replace(
            whole,
            rounds=averaged_rounds(averages, [tensor_bytes(share) for share in shares]),
            optimizer_state=len(self.options.slots) * tensor_bytes(fullest),
            stepped=tuple(fullest),
        )


class _Optimizer(ZeroRedundancyOptimizer):
    """torch's own, with broadcasts through the fabric. `optim` updates the parameters of this node."""

    def __init__(self, parameters: Sequence[nn.Parameter], options: BucketOptions, fabric: Fabric) -> None:
        self._fabric = fabric
        super().__init__(options.groups(parameters), options.build, parameters_as_bucket_view=True)  # type: ignore[arg-type]

    def _broadcast_params_from_rank(self, rank: int) -> list[Pending]:
        name = f"parameters updated on rank {rank}"
        return [self._fabric.broadcast_async(bucket[rank], rank, name) for bucket in self._buckets]
