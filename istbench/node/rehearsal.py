"""One loss of a plug-in's workload before training, so that a mistake ends in one line that names it."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import GroupMember, _world

from istbench.base.errors import UserError, shown
from istbench.methods.base import CutsUnits, Method, materialise
from istbench.node.model_proof import prove_model
from istbench.workloads.base import Batch, Workload
from istbench.workloads.contract import blank_model
from istbench.workloads.held_out import whole
from istbench.workloads.neuron_groups.groups import misfit, permute_units
from istbench.workloads.neuron_groups.proof import random_values
from istbench.workloads.task import TaskWorkload
from istbench.workloads.task_batches import RandomNumbers

_MOST_PARAMETERS = 2**22  # a larger model takes seconds, and memory that the workers need
_SAMPLES = 8
_NEAR = 1e-4


def rehearse(workload: Workload, method: type[Method], nodes: int = 1) -> None:
    """Compute one loss of `workload`, whose data is open, for `method` on `nodes`.

    For a method that cuts units, try other orders of them. A task file is tried by its own `try_out`. The launcher
    proves its groups; `prove_model` proves its model.

    The units of a neuron group are interchangeable: their order must not change the function of the model. Models
    of more than 4 million parameters are not tried. Training reports other errors of the plug-in's code, with their
    line.

    Raises:
        UserError: the workload returns a wrong value, or a neuron group does not fit the model.
    """
    with no_messages_of(f"the code of {workload.in_errors}"):
        task = whole(workload)
        if isinstance(task, TaskWorkload):
            with RandomNumbers(0).drawn():
                task.try_out()
            prove_model(task, method, nodes)
            return
        try:
            with RandomNumbers(0).drawn():
                _try_orders(workload, issubclass(method, CutsUnits))
        except UserError:
            raise
        except Exception:
            return


def _try_orders(workload: Workload, cuts_units: bool) -> None:
    model = blank_model(workload, data_known=True)
    if sum(parameter.numel() for parameter in model.parameters()) > _MOST_PARAMETERS:
        return
    batch = _batch(workload)
    groups = workload.neuron_groups(model) if cuts_units else []
    model = random_values(materialise(model, workload, 0, torch.device("cpu"))).eval()  # initial ones may be 0
    before = _loss(workload, model, batch)
    if _loss(workload, model, batch) != before:
        return  # the loss draws random numbers, so that two losses cannot be compared
    for group in groups:
        permuted = copy.deepcopy(model)
        permute_units(permuted, group, torch.arange(group.size).roll(1))
        after = _loss(workload, permuted, batch)
        if abs(after - before) > _NEAR * max(1.0, abs(before)):
            moved = f"another order of its {group.size} units changes the loss from {before:.4f} to {after:.4f}"
            raise UserError(f"{workload.in_errors}: {misfit(model, group, groups, moved)}")


def _batch(workload: Workload) -> Batch:
    indices = torch.arange(min(_SAMPLES, workload.train_size))
    if not len(indices):
        raise UserError(f"workload {workload.name!r}: train_size is 0 after its data is open; give it some data")
    batch: Any = workload.train_batch(indices, torch.Generator().manual_seed(0))
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            f"workload {workload.name!r}: train_batch must return a pair of inputs and targets, not "
            f"{type(batch).__name__}"
        )
    return batch[0], batch[1]


def _loss(workload: Workload, model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        loss: Any = workload.loss(model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else shown(loss)
        raise UserError(
            f"workload {workload.name!r}: loss must return a scalar tensor to call backward on, not {what}"
        )
    return loss.item()


_MESSAGES = ("all", "_all", "reduce", "_reduce", "broadcast", "gather", "scatter", "send", "recv", "barrier")


@contextmanager
def no_messages_of(whose: str) -> Iterator[None]:
    """Inside, code that sends messages through torch's default process group is refused; `whose` names it.

    The other ranks wait meanwhile: they would take its message for another one, and abort.
    """
    world: Any = GroupMember.WORLD
    if world is None or world.size() == 1:
        yield
        return
    silent: Any = _Silent(world, whose)
    tables: list[Any] = [_world.pg_map, _world.pg_names, _world.pg_group_ranks, _world.pg_backend_config]
    for table in tables:
        table[silent] = table[world]
    GroupMember.WORLD = silent
    try:
        yield
    finally:
        GroupMember.WORLD = world
        for table in tables:
            del table[silent]


class _Silent:
    def __init__(self, group: Any, whose: str) -> None:
        self._group, self._whose = group, whose

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_MESSAGES):
            raise UserError(
                f"{self._whose} sends messages of its own through torch.distributed ({name}), which mix with those "
                "of a method and are not counted; switch them off in model() (SyncBatchNorm: use BatchNorm), or "
                "train on one node"
            )
        return getattr(self._group, name)
