"""The shares of all nodes of a group in a checkpoint, and the share of a node of a group of another size."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from istbench.methods.resharding import mean_of, mean_slots
from istbench.methods.subnets.exchange import Holdings, mean_of_owners
from istbench.workloads.base import Workload
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.neuron_groups.layout import (
    CutTensor,
    Layout,
    part_of_subnet,
    select,
    subnet_index,
    write,
)
from istbench.workloads.neuron_groups.partition import Partition, home_partition


@dataclass(frozen=True, kw_only=True)
class Deal:
    """The way in which `world_size` nodes share a model: the `layout` and the `partition` of their subnets."""

    world_size: int
    layout: Layout
    partition: Partition

    @property
    def home(self) -> Partition:
        """The partition that keeps the entries of no subnet."""
        return home_partition(self.layout.groups, self.world_size)


class SavedShares:
    """The `states` of the shares (`SubnetShare.state_dict`) of all nodes in `deal`.

    Args:
        names: of the parameters, in the order of the optimizer. slots: names of its tensors of a parameter's shape.
    """

    def __init__(
        self, states: Sequence[Mapping[str, Any]], deal: Deal, names: Sequence[str], slots: Sequence[str]
    ) -> None:
        self._states, self._deal, self._names, self._slots = states, deal, names, slots
        self._cut = {cut.name: cut for cut in deal.layout.cut}

    def landed(self, deal: Deal, arrived: Iterable[Holdings]) -> "SavedShares":
        """The shares in `deal` once units that were in flight have `arrived` on each node."""
        states = []
        for state, held in zip(self._states, arrived, strict=True):
            kept = dict(state["optimizer"]["state"])
            for index, name in enumerate(self._names):
                if str(index) in kept and name in held.subnet:
                    kept[str(index)] = {
                        **kept[str(index)],
                        **dict(zip(self._slots, held.subnet[name][1:], strict=False)),
                    }
            states.append(
                {
                    "subnet": {**state["subnet"], **{name: planes[0] for name, planes in held.subnet.items()}},
                    "home": {
                        name: {str(number): plane for number, plane in enumerate(planes)}
                        for name, planes in held.home.items()
                    },
                    "optimizer": {**state["optimizer"], "state": kept},
                }
            )
        return SavedShares(states, deal, self._names, self._slots)

    def holdings(self, node: int, *, carries: bool) -> Holdings:
        """Copies of the tensors of `node` that travel, with their optimizer state if the method `carries` it."""
        state = self._states[node]
        kept = self._kept[node] if carries else {}
        subnet = {
            name: [
                state["subnet"][name].clone(),
                *(kept[name][slot].clone() for slot in self._slots if name in kept),
            ]
            for name in self._cut
        }
        home = {
            name: [planes[str(number)].clone() for number in range(len(planes))]
            for name, planes in state["home"].items()
        }
        return Holdings(subnet, home)

    def share(
        self, model: nn.Module, workload: Workload, deal: Deal, rank: int, *, coverage: int, carries: bool
    ) -> dict[str, Any]:
        """The state of the share of node `rank` in another `deal` of `model` (meta device)."""
        first, cuts, travelling = self._states[0], {cut.name: cut for cut in deal.layout.cut}, deal.layout.names()
        subnet, home = dict[str, Tensor](), dict[str, dict[str, Tensor]]()
        kept: dict[str, Any] = {}
        numbers = {name: str(index) for index, name in enumerate(self._names)}
        for name in named_tensors(model):
            if name not in travelling:
                if name in first["subnet"]:
                    subnet[name] = self._own_buffer(name, workload.initial_buffer(model, name), deal, rank)
                continue
            whole, slots = self._values(name), self._slots_of(name) if name in numbers else {}
            cut = cuts.get(name)
            subnet[name] = whole if cut is None else _part(cut, whole, deal, rank)
            if slots:
                kept[numbers[name]] = {
                    slot: _part(cut, value, deal, rank) if cut is not None and _is_cut(value, cut) else value
                    for slot, value in slots.items()
                }
            if cut is not None and cut.needs_home and 2 * coverage <= deal.world_size:
                planes = [whole, *(slots[slot] for slot in self._slots if carries and slots)]
                index = subnet_index(cut, deal.home, rank)[:1]
                home[name] = {
                    str(number): select(plane, cut.axes[:1], index) for number, plane in enumerate(planes)
                }
        return {
            "subnet": {name: subnet[other] for name, other in _one_name(model).items() if name in first["subnet"]},
            "home": home,
            "optimizer": {**first["optimizer"], "state": kept},
        }

    @cached_property
    def _kept(self) -> list[dict[str, dict[str, Any]]]:
        """The optimizer's state on each node, by the name of the parameter."""
        by_node = [state["optimizer"]["state"] for state in self._states]
        names = [(name, str(index)) for index, name in enumerate(self._names)]
        return [{name: kept[index] for name, index in names if index in kept} for kept in by_node]

    def _own_buffer(self, name: str, initial: Tensor, deal: Deal, rank: int) -> Tensor:
        """A buffer that does not travel: that of node 0, with its initial values where a partition cuts it."""
        part = part_of_subnet(name, initial, deal.layout.groups, deal.partition, rank)
        saved: Tensor = self._states[0]["subnet"][name]
        return saved if saved.shape == initial.shape == part.shape else part

    def _values(self, name: str) -> Tensor:
        parts = [state["subnet"][name] for state in self._states]
        return self._assembled(self._cut[name], 0, parts) if name in self._cut else mean_of(parts, len(parts))

    def _slots_of(self, name: str) -> dict[str, Any]:
        """The optimizer's state of parameter `name` of the full model; empty if no node has any."""
        by_node = [kept.get(name, {}) for kept in self._kept]
        if name not in self._cut:
            return mean_slots(by_node)
        numbers = [{slot: value for slot, value in own.items() if slot not in self._slots} for own in by_node]
        found = mean_slots(numbers)
        for plane, slot in enumerate(self._slots, start=1):
            if any(isinstance(own.get(slot), Tensor) for own in by_node):
                parts = [
                    own[slot] if slot in own else torch.zeros_like(state["subnet"][name])
                    for own, state in zip(by_node, self._states, strict=True)
                ]
                found[slot] = self._assembled(self._cut[name], plane, parts)
        return found

    def _assembled(self, cut: CutTensor, plane: int, parts: Sequence[Tensor]) -> Tensor:
        """The full tensor of `parts`, the subnets' entries by node. Those in no subnet are at home."""
        deal, full = self._deal, parts[0].new_zeros(cut.shape)
        for node, state in enumerate(self._states):
            if str(plane) in state["home"].get(cut.name, {}):
                shard = state["home"][cut.name][str(plane)]
                write(full, cut.axes[:1], subnet_index(cut, deal.home, node)[:1], shard)
        indices = [subnet_index(cut, deal.partition, node) for node in range(len(parts))]
        if deal.partition[cut.axes[0].group].coverage == 1:
            for index, part in zip(indices, parts, strict=True):
                write(full, cut.axes, index, part)
            return full
        owned = ((cut.axes, index, part) for index, part in zip(indices, parts, strict=True))
        return mean_of_owners(full, owned, torch.float64)


def _part(cut: CutTensor, whole: Tensor, deal: Deal, rank: int) -> Tensor:
    return select(whole, cut.axes, subnet_index(cut, deal.partition, rank))


def _is_cut(value: Any, cut: CutTensor) -> bool:
    return isinstance(value, Tensor) and value.shape == cut.shape


def _one_name(model: nn.Module) -> dict[str, str]:
    """For each name of a tensor in `model.state_dict()`, the first name of the same tensor."""
    first = {id(tensor): name for name, tensor in reversed(named_tensors(model).items())}
    every = itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    return {name: first[id(tensor)] for name, tensor in every}
