"""Neuron groups cut the tensors of a model: shapes and initial values of subnets and of home shards.

No node ever makes a full tensor.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from istbench.workloads.memory_order import memory_format
from istbench.workloads.neuron_groups.cut_attention import keep_head_size
from istbench.workloads.neuron_groups.groups import (
    NeuronGroup,
    expand_units,
    named_tensors,
    slot_length,
    validate_groups,
)
from istbench.workloads.neuron_groups.partition import Partition

_RUNNING_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Axis:
    """One cut dimension of a tensor: the group that indexes it and the indices a unit owns, as in a `Slot`."""

    dim: int
    group: str
    block: int
    segments: int = 1

    def index(self, units: Tensor, held: int) -> Tensor:
        """The indices that `units` own, in a tensor with `held` units of the group."""
        return expand_units(units, self.block, self.segments, held)


@dataclass(frozen=True)
class CutTensor:
    """A tensor cut along one or two dimensions.

    With one axis, every entry is in as many subnets in every round as its unit has owners: in exactly one with a
    coverage of 1. With two, an entry is in a subnet only where the same node owns its row's and its column's unit;
    the others are kept on their home node, by the unit of the first axis.
    """

    name: str
    shape: torch.Size
    axes: tuple[Axis, ...]

    @property
    def needs_home(self) -> bool:
        """Whether some entries may be in no subnet."""
        return len(self.axes) == 2

    @property
    def axis_units(self) -> list[int]:
        """The number of units along each axis."""
        return [self.shape[axis.dim] // (axis.block * axis.segments) for axis in self.axes]

    def index(self, units: Sequence[Tensor]) -> list[Tensor]:
        """Per axis, the indices that `units` (one tensor of units per axis) own."""
        return [axis.index(own, held) for axis, own, held in zip(self.axes, units, self.axis_units, strict=True)]


@dataclass(frozen=True)
class Layout:
    """The tensors that travel between nodes: `cut` ones by index, `replicated` ones by averaging.

    The vectors of a spectral normalisation (`own_vectors`) are in neither. Nor are running statistics of BatchNorm.
    Those of a subnet do not fit the assembled network, so they never cross the network. Every evaluation estimates
    them for the assembled model. Those of frozen layers, which `build_model` put into evaluation mode, are like
    weights.

    replicated_values: the number of values of the `replicated` tensors.
    """

    groups: tuple[NeuronGroup, ...]
    cut: tuple[CutTensor, ...]
    replicated: tuple[str, ...]
    replicated_values: int

    def names(self) -> set[str]:
        """Names of all tensors that travel."""
        return {tensor.name for tensor in self.cut} | set(self.replicated)

    @property
    def replicated_share(self) -> float:
        """The share of the `replicated` tensors in the values of all tensors that travel."""
        values = self.replicated_values + sum(tensor.shape.numel() for tensor in self.cut)
        return self.replicated_values / max(1, values)


def layout_of(model: nn.Module, groups: Sequence[NeuronGroup]) -> Layout:
    """The layout of `model` (meta device is enough) under `groups`.

    Raises:
        ValueError: if a group does not fit the model, or indexes a tensor without floats; or if a tensor is indexed
            along three or more dimensions.
    """
    validate_groups(model, groups)
    axes: dict[str, list[Axis]] = {}
    for group in groups:
        for slot in group.slots:
            axes.setdefault(slot.tensor, []).append(Axis(slot.dim, group.name, slot.block, slot.segments))
    cut, replicated, replicated_values, own = [], [], 0, own_vectors(model)
    travels = next((parameter.dtype for parameter in model.parameters()), None)
    for name, tensor in named_tensors(model).items():
        if name in axes and tensor.dtype != travels:
            raise ValueError(
                f"neuron group {axes[name][0].group!r}: {name} is a buffer of {tensor.dtype}, and units travel as "
                f"{travels}; take its dimension out of the group"
            )
        if not tensor.is_floating_point() or name in own or _is_estimated(model, name):
            continue
        if name not in axes:
            replicated.append(name)
            replicated_values += tensor.numel()
            continue
        if len(axes[name]) > 2:
            raise ValueError(f"{name} is indexed by neuron groups along {len(axes[name])} dimensions; 2 at most")
        cut.append(CutTensor(name, tensor.shape, tuple(sorted(axes[name], key=lambda axis: axis.dim))))
    return Layout(tuple(groups), tuple(cut), tuple(replicated), replicated_values)


def shared_tensors(model: nn.Module, groups: Sequence[NeuronGroup]) -> dict[str, Tensor]:
    """The floating-point tensors of `model` that no unit of `groups` indexes: parameters, then buffers.

    Without groups, these are the tensors that `local_sgd` averages, in its order, with running statistics.
    """
    indexed = {slot.tensor for group in groups for slot in group.slots}
    left = indexed | own_vectors(model)
    tensors = named_tensors(model).items()
    return {name: tensor for name, tensor in tensors if name not in left and tensor.is_floating_point()}


def own_vectors(model: nn.Module) -> set[str]:
    """Names of the buffers of torch's spectral normalisation: each node tracks the singular vectors of its weights.

    No method averages them: a mean of unit vectors is shorter, and an evaluation then divides by too small a norm.
    """
    found = set()
    for name, module in model.named_modules():
        kinds = [hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
        kinds += [""] if isinstance(module, _SpectralNorm) else []
        found |= {f"{name}.{kind}_{vector}".removeprefix(".") for kind in kinds for vector in "uv"}
    return found


def _is_estimated(model: nn.Module, name: str) -> bool:
    """Whether tensor `name` is a running statistic that every evaluation estimates: not that of a frozen layer."""
    owner, _, short = name.rpartition(".")
    layer = model.get_submodule(owner)
    known = short in _RUNNING_STATISTICS and isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return known and not is_frozen_layer(model, layer)


def is_frozen_layer(model: nn.Module, layer: nn.Module) -> bool:
    """Whether `layer` stays in evaluation mode while `model` trains, and so keeps its running statistics."""
    return model.training and not layer.training


def build_subnet(
    model: nn.Module, groups: Sequence[NeuronGroup], units: Mapping[str, int], device: torch.device
) -> nn.Module:
    """A copy of `model` (on the meta device) with uninitialised tensors of the shapes of a subnet.

    units: how many the subnet has of each of `groups`, by name.

    Attributes of its modules that count units count those of the subnet. The `sums` of a group are scaled by the
    inverse of the subnet's share of its units.
    """
    lengths: dict[str, dict[int, int]] = {}
    subnet = copy.deepcopy(model)
    for group in groups:
        own = units[group.name]
        for slot in group.slots:
            lengths.setdefault(slot.tensor, {})[slot.dim] = slot_length(own, slot)
        for attribute in group.attributes:
            module = subnet.get_submodule(attribute.module)
            setattr(module, attribute.name, getattr(module, attribute.name) // group.size * own)
            if type(module) is nn.MultiheadAttention and own < group.size:
                keep_head_size(module)
        if own < group.size and not group.scales_itself:
            for name in group.sums:
                layer = subnet.get_submodule(name.rpartition(".")[0])
                layer.register_forward_pre_hook(_Scaled(group.size / own))
    made: dict[int, Tensor] = {}
    for prefix, module in subnet.named_modules():
        for registry in (module._parameters, module._buffers):
            for short, tensor in registry.items():
                if tensor is None:
                    continue
                name = f"{prefix}.{short}" if prefix else short
                # A tensor shared by two modules stays shared.
                if id(tensor) not in made:
                    made[id(tensor)] = _empty_like(tensor, lengths.get(name, {}), device)
                registry[short] = made[id(tensor)]
    return subnet


@dataclass(frozen=True)
class _Scaled:
    """A hook that multiplies the first input of a layer by `factor`; unlike a function, it can be copied."""

    factor: float

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0] * self.factor, *inputs[1:])


def _empty_like(tensor: Tensor, lengths: dict[int, int], device: torch.device) -> Tensor:
    shape = [lengths.get(dim, length) for dim, length in enumerate(tensor.shape)]
    fresh = torch.empty(shape, dtype=tensor.dtype, device=device, memory_format=memory_format(tensor))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fresh, requires_grad=tensor.requires_grad)
    return fresh


def subnet_index(tensor: CutTensor, partition: Partition, node: int) -> list[Tensor]:
    """Per axis of `tensor`, the indices into the full tensor that `node`'s subnet holds."""
    return tensor.index([partition[axis.group].units[node] for axis in tensor.axes])


def part_of_subnet(
    name: str, whole: Tensor, groups: Sequence[NeuronGroup], partition: Partition, node: int
) -> Tensor:
    """The entries of tensor `name` that belong to `node`'s units, along every dimension that `groups` index."""
    for group in groups:
        for slot in group.slots:
            if slot.tensor == name:
                units = partition[group.name].units[node]
                index = expand_units(units, slot.block, slot.segments, group.size)
                whole = whole.index_select(slot.dim, index.to(whole.device))
    return whole


def product_shape(shape: torch.Size, axes: Sequence[Axis], index: Sequence[Tensor]) -> torch.Size:
    """Shape of the entries of a tensor of `shape` at the product of `index` (one index per axis)."""
    lengths = {axis.dim: wanted.numel() for axis, wanted in zip(axes, index, strict=True)}
    return torch.Size(lengths.get(dim, length) for dim, length in enumerate(shape))


def select(tensor: Tensor, axes: Sequence[Axis], index: Sequence[Tensor]) -> Tensor:
    """The entries of `tensor` at the product of `index` (one index per axis); a copy."""
    for axis, wanted in zip(axes, index, strict=True):
        tensor = tensor.index_select(axis.dim, wanted.to(tensor.device))
    return tensor


def select_into(target: Tensor, tensor: Tensor, axes: Sequence[Axis], index: Sequence[Tensor]) -> None:
    """Fill `target` with the entries of `tensor` at the product of `index`, if possible without a copy between."""
    if len(axes) == 1 and target.dtype == tensor.dtype:
        torch.index_select(tensor, axes[0].dim, index[0].to(tensor.device), out=target)
    else:
        target.copy_(select(tensor, axes, index))


def write(tensor: Tensor, axes: Sequence[Axis], index: Sequence[Tensor], values: Tensor) -> None:
    """Write `values` over the entries of `tensor` at the product of `index`; the inverse of `select`."""
    places = [wanted.to(tensor.device) for wanted in index]
    if len(axes) == 1:
        tensor.index_copy_(axes[0].dim, places[0], values)
        return
    dims = [axis.dim for axis in axes]
    tensor.movedim(dims, (0, 1))[places[0][:, None], places[1]] = values.movedim(dims, (0, 1))


Rows = Callable[[str, Tensor | None], Tensor]
"""rows(name, indices): initial values of those rows (dimension 0; None for all) of a full tensor."""

_CHUNK_VALUES = 1 << 24


def initial_part(tensor: CutTensor, index: Sequence[Tensor], rows: Rows) -> Tensor:
    """Initial values of the entries of `tensor` at the product of `index`, an index for each of its first axes."""
    by_dim = {axis.dim: own for axis, own in zip(tensor.axes, index, strict=False)}
    wanted = by_dim.pop(0, torch.arange(tensor.shape[0]))
    values_a_row = max(1, tensor.shape.numel() // max(1, tensor.shape[0]))
    pieces = []
    for chunk in wanted.split(max(1, _CHUNK_VALUES // values_a_row)):
        piece = rows(tensor.name, chunk)
        for dim, columns in by_dim.items():
            piece = piece.index_select(dim, columns)
        pieces.append(piece)
    return torch.cat(pieces)
