"""Neuron groups: the entries of tensors that belong to one hidden unit.

Independent Subnet Training partitions hidden units, not tensors. A group is a set of interchangeable units,
such as the outputs of one hidden layer. Each unit owns one index (or a run of `block` indices) along one
dimension of several tensors: its row of incoming weights, its entry of the bias and of the normalisation, and
its column of outgoing weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from istbench.base.errors import shown

_NAMED = 4


@dataclass(frozen=True)
class Slot:
    """One place where the units of a group are indexed.

    `tensor` is a parameter's or buffer's name as in `named_parameters()`, `dim` the indexed dimension, and
    `block` the number of consecutive indices a unit owns there: 1 almost always, `h * w` where a flatten turns
    one channel into that many columns. If the dimension holds the units several times, one after the other, such as
    for the queries, keys and values of all attention heads, `segments` is that number.
    """

    tensor: str
    dim: int
    block: int = 1
    segments: int = 1


@dataclass(frozen=True)
class Attribute:
    """A whole number that a module stores and that grows with its units, such as a number of attention heads.

    `module` is the module's name as in `named_modules()`. A subnet stores its own share of the number.
    """

    module: str
    name: str


@dataclass(frozen=True)
class NeuronGroup:
    """`size` interchangeable hidden units, every place that they index, and every attribute that counts them.

    late: whether the group lies behind the first stage of the network, in a layer or block that keeps the shape of
        its input. The option `deal=late` of `ist` deals the units of these groups alone.
    found: whether istbench found the group in the structure of the model, so that nobody asked to deal its units.
    sums: parameters whose layers sum over the units, without a normalisation behind the sum. A subnet multiplies
        the input of these layers by the inverse of its share of the units.
    scales_itself: whether the code of the model does so already.
    """

    name: str
    size: int
    slots: tuple[Slot, ...]
    attributes: tuple[Attribute, ...] = ()
    late: bool = False
    found: bool = False
    sums: tuple[str, ...] = ()
    scales_itself: bool = False


def dealt_to(nodes: int, groups: Sequence[NeuronGroup]) -> list[NeuronGroup]:
    """`groups` without those that istbench found and that have fewer units than there are `nodes`: they stay whole.

    A group that a workload or a user wrote stays among them; it is refused, not changed.
    """
    return [group for group in groups if group.size >= nodes or not group.found]


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of `model` by name, shared ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def validate_groups(model: nn.Module, groups: Sequence[NeuronGroup]) -> None:
    """Check that every slot exists, fits its group's size, and that no dimension belongs to two groups.

    Raises:
        ValueError: naming the group and the slot that does not fit.
    """
    tensors = named_tensors(model)
    taken: dict[tuple[str, int], str] = {}
    _check_kinds(groups)
    for group in groups:
        for slot in group.slots:
            place = f"neuron group {group.name!r}: {slot.tensor} dimension {slot.dim}"
            if slot.tensor not in tensors:
                raise ValueError(f"{place}: the model has no such tensor")
            shape = tensors[slot.tensor].shape
            if not 0 <= slot.dim < len(shape):
                raise ValueError(f"{place}: the tensor has {len(shape)} dimensions")
            if shape[slot.dim] != slot_length(group.size, slot):
                segments = f" x {slot.segments} segments" if slot.segments > 1 else ""
                raise ValueError(
                    f"{place}: length {shape[slot.dim]} is not {group.size} units x block {slot.block}{segments}"
                )
            if (slot.tensor, slot.dim) in taken:
                raise ValueError(f"{place}: already indexed by {taken[slot.tensor, slot.dim]!r}")
            taken[slot.tensor, slot.dim] = group.name
        for name in group.sums:
            if name not in {slot.tensor for slot in group.slots}:
                raise ValueError(f"neuron group {group.name!r}: {shown(name)} of its sums is in no slot")
        _check_attributes(model, group)


def _check_attributes(model: nn.Module, group: NeuronGroup) -> None:
    modules = dict(model.named_modules())
    for attribute in group.attributes:
        place = f"neuron group {group.name!r}: attribute {attribute.name} of {attribute.module!r}"
        if attribute.module not in modules:
            raise ValueError(f"{place}: the model has no such module")
        value = getattr(modules[attribute.module], attribute.name, None)
        if type(value) is not int or value % group.size:
            raise ValueError(f"{place}: {shown(value)} is not a multiple of {group.size} units")


def _check_kinds(groups: Any) -> None:
    """Check the types in `groups`, which may come from a plug-in."""
    if not isinstance(groups, list | tuple):
        raise ValueError(f"neuron_groups must return a list of NeuronGroup, not {shown(groups)}")
    for group in groups:
        if not isinstance(group, NeuronGroup):
            raise ValueError(f"neuron_groups must return a list of NeuronGroup, with {shown(group)} in it")
        if type(group.size) is not int or group.size < 1:
            raise ValueError(f"neuron group {group.name!r}: size must be a whole number of at least 1, not "
                             f"{shown(group.size)}")  # fmt: skip
        if type(group.late) is not bool:
            raise ValueError(f"neuron group {group.name!r}: late must be true or false, not {shown(group.late)}")
        if not group.slots:
            raise ValueError(f"neuron group {group.name!r} has no slots: no tensor is indexed by its units")
        for slot in group.slots:
            numbers = (slot.dim, slot.block, slot.segments) if isinstance(slot, Slot) else ()
            if not numbers or any(type(number) is not int for number in numbers) or min(numbers[1:]) < 1:
                raise ValueError(f"neuron group {group.name!r}: {shown(slot)} is no Slot(tensor, dim, block)")


def unindexed(model: nn.Module, group: NeuronGroup, groups: Sequence[NeuronGroup]) -> list[tuple[str, int]]:
    """Dimensions of `model` as long as those in the slots of `group` that are in no slot of any of `groups`."""
    tensors = named_tensors(model)
    lengths = {slot_length(group.size, slot) for slot in group.slots}
    taken = {(slot.tensor, slot.dim) for other in groups for slot in other.slots}
    places = [(name, dim) for name, tensor in tensors.items() for dim in range(tensor.dim())]
    return [place for place in places if place not in taken and tensors[place[0]].shape[place[1]] in lengths]


def misfit(model: nn.Module, group: NeuronGroup, groups: Sequence[NeuronGroup], problem: str) -> str:
    """The words that refuse `group`, one of `groups` of `model`, for a `problem` of its units."""
    missing = [f"{name} dimension {dim}" for name, dim in unindexed(model, group, groups)]
    hint = f"; dimensions of this size in no slot: {', '.join(missing[:_NAMED])}" if missing else ""
    return (
        f"neuron group {group.name!r} does not fit the model: {problem}{hint}; list every dimension that a unit "
        "indexes in its slots"
    )


def slot_length(units: int, slot: Slot) -> int:
    """Length of the dimension of `slot` in a tensor with that many units."""
    return units * slot.block * slot.segments


def expand_units(units: Tensor, block: int, segments: int = 1, held: int = 0) -> Tensor:
    """Tensor indices owned by `units` ([k] -> [segments * k * block]), segment by segment.

    Each unit owns `block` consecutive indices in every segment. With several segments, `held` is the number of all
    units in the tensor.
    """
    if block > 1:
        units = (units[:, None] * block + torch.arange(block)).reshape(-1)
    if segments == 1:
        return units
    return (torch.arange(segments)[:, None] * (held * block) + units).reshape(-1)


def permute_units(model: nn.Module, group: NeuronGroup, permutation: Tensor) -> None:
    """Reorder the units of `group` in place. The function of the network must not change: the test of a group."""
    tensors = named_tensors(model)
    with torch.no_grad():
        for slot in group.slots:
            index = expand_units(permutation, slot.block, slot.segments, group.size)
            index = index.to(tensors[slot.tensor].device)
            tensors[slot.tensor].copy_(tensors[slot.tensor].index_select(slot.dim, index))
