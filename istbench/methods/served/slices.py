"""The slices of a model's parameters, the server of each, and the order in which slices are sent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from istbench.workloads.memory_order import flattened, memory_format


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of parameter number `parameter`, updated by node `server`.

    index: of this slice in the whole model, in the order of parameters.
    """

    index: int
    parameter: int
    start: int
    stop: int
    server: int


def cut(sizes: Sequence[int], slice_params: int, world_size: int, *, split_params: int = 0) -> list[list[Slice]]:
    """The slices of each parameter, given the parameters' numbers of elements.

    A slice has at most `slice_params` elements of one parameter. With `slice_params` 0, parameters stay whole. If
    `split_params` is not 0, parameters of more elements are then cut in equal parts, one for each node. One counter
    across the whole model deals slices to the nodes, so that no node gets the surplus slice of every parameter.
    """
    slices: list[list[Slice]] = []
    count = 0
    for parameter, size in enumerate(sizes):
        split = not slice_params and 0 < split_params < size
        starts = range(0, size, -(-size // world_size) if split else slice_params or max(1, size))
        slices.append(
            [
                Slice(
                    index=count + k,
                    parameter=parameter,
                    start=start,
                    stop=min(start + starts.step, size),
                    server=(count + k) % world_size,
                )
                for k, start in enumerate(starts)
            ]
        )
        count += len(starts)
    return slices


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
        sizes = [parameter.numel() for parameter in self.tensors]
        self.slices = cut(sizes, slice_params, world_size, split_params=split_params)
        self.all = [slice for slices in self.slices for slice in slices]
        self.itemsize = max((flat.element_size() for flat in self.flat), default=1)

    def __len__(self) -> int:
        return len(self.tensors)

    def part(self, slice: Slice) -> Tensor:
        """The values of `slice`, a view of the model's."""
        return self.flat[slice.parameter][slice.start : slice.stop]

    @property
    def largest_slice(self) -> int:
        """Elements of the largest slice; 0 if there is none."""
        return max((slice.stop - slice.start for slice in self.all), default=0)


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
