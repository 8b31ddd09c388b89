"""The slices of a model's parameters, the server of each, and the order in which slices are sent."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from istbench.methods.served.messages import Slice, cut
from istbench.workloads.memory_order import flattened, memory_format

_FIRST = "0"  # the number of its only parameter in the state of an optimizer


class SlicedParameters:
    """The trained parameters of `model`, each contiguous in its memory format, and their slices.

    Attributes:
        names, tensors, flat: of each parameter its name, itself, and a flat view of its values.
        slices: of each parameter. all: the slices of all parameters, by index.
        itemsize: bytes of the largest element.
    """

    def __init__(self, model: nn.Module, slice_params: int, split_params: int, world_size: int) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        for _, parameter in named:
            parameter.data = parameter.data.contiguous(memory_format=memory_format(parameter))
        self.names = [name for name, _ in named]
        self.tensors = [parameter for _, parameter in named]
        self.flat = [flattened(parameter.detach(), parameter) for parameter in self.tensors]
        self._slicing = slice_params, split_params
        self.slices = self.cut_for(world_size)
        self.all = [slice for slices in self.slices for slice in slices]
        self.itemsize = max((flat.element_size() for flat in self.flat), default=1)

    def cut_for(self, world_size: int) -> list[list[Slice]]:
        slice_params, split_params = self._slicing
        sizes = [parameter.numel() for parameter in self.tensors]
        return cut(sizes, slice_params, world_size, split_params=split_params)

    def __len__(self) -> int:
        return len(self.tensors)

    def part(self, slice: Slice) -> Tensor:
        return self.flat[slice.parameter][slice.start : slice.stop]

    @property
    def largest_slice(self) -> int:
        """Elements of the largest slice; 0 if there is none."""
        return max((slice.stop - slice.start for slice in self.all), default=0)


def joined_slots(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The optimizer's state of a parameter from the `states` of its slices, which are updated together."""
    first, *others = states
    slots = {
        name: torch.cat([value, *(other["state"][_FIRST][name] for other in others)]) if _is_flat(value) else value
        for name, value in first["state"].get(_FIRST, {}).items()
    }
    return {**first, "state": {_FIRST: slots} if slots else {}}


def part_of_slots(state: dict[str, Any], slice: Slice) -> dict[str, Any]:
    """The part of `slice` in the optimizer's `state` of its parameter."""
    slots = {
        name: value[slice.start : slice.stop] if _is_flat(value) else value
        for name, value in state["state"].get(_FIRST, {}).items()
    }
    return {**state, "state": {_FIRST: slots} if slots else {}}


def _is_flat(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


class SendOrder:
    """The order in which the messages of slices leave a node; a lower number leaves first.

    Without `priority`, messages of one round leave in the order in which they become ready.
    """

    def __init__(self, slices: int, *, priority: bool) -> None:
        self.priority = priority
        self._place = list(range(slices))
        self._round = 0

    def follow(self, indices: Iterable[int]) -> None:
        """Send slices in the order of `indices` from now on."""
        for place, index in enumerate(indices):
            self._place[index] = place

    def next_round(self) -> None:
        """Begin a round. Messages of an older round leave first: a late node needs them before newer ones."""
        self._round += 1

    def urgency(self, index: int) -> int:
        """The place of slice `index` among the messages of one round."""
        return self._place[index] if self.priority else 0

    def of(self, index: int) -> int:
        """The place of a message about slice `index`, if it is sent now."""
        return self._round * len(self._place) + self.urgency(index)
