"""The server half of a node: gradients of its slices come in from all nodes, new values go out."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from istbench.optimizer import load_optimizer_state, optimizer_state, set_rate
from istbench.served.slices import Slice


class SliceServer:
    """Collects the gradients of the slices that one node serves and updates their values.

    A slice is updated once a contribution of every node is there, by the mean of the gradients, added up in rank
    order. A node may contribute that it has none this step; where no node has one, nothing is updated. The
    optimizer's state of a slice is here and nowhere else.

    Not thread-safe: the caller lets one thread at a time contribute, and one update a slice.

    Args:
        slices: those of this node.
        values: flat views of what `slices` hold, in the model itself.
        build: an optimizer over one slice.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        values: Sequence[Tensor],
        build: Callable[[list[Tensor]], torch.optim.Optimizer],
        world_size: int,
    ) -> None:
        self._values = {slice.index: value for slice, value in zip(slices, values, strict=True)}
        self._optimizers = {index: build([value]) for index, value in self._values.items()}
        self._world_size = world_size
        self._gradients: dict[int, dict[int, Tensor | None]] = {index: {} for index in self._values}

    def set_rate(self, index: int, rate: float) -> None:
        """Let the next update of slice `index` have learning rate `rate`."""
        set_rate(self._optimizers[index], rate)

    def contribute(self, index: int, rank: int, gradient: Tensor | None) -> bool:
        """Take node `rank`'s gradient of slice `index`; returns whether that was the last one missing."""
        gradients = self._gradients[index]
        gradients[rank] = gradient
        return len(gradients) == self._world_size

    def missing(self, index: int) -> set[int]:
        """The nodes that have not contributed to slice `index`."""
        return set(range(self._world_size)) - self._gradients[index].keys()

    def update(self, index: int) -> bool:
        """Update slice `index` from all contributions; returns whether its values changed."""
        gradients = self._gradients[index]
        present = [gradient for _, gradient in sorted(gradients.items()) if gradient is not None]
        gradients.clear()
        if not present:
            return False
        value = self._values[index]
        mean, *others = (gradient.to(value.device, non_blocking=True) for gradient in present)
        for other in others:
            mean.add_(other)
        if self._world_size > 1:
            mean.div_(self._world_size)
        value.grad = mean
        self._optimizers[index].step()
        value.grad = None
        return True

    def state_dict(self) -> dict[str, object]:
        """The optimizer's state by slice."""
        return {str(index): optimizer_state(optimizer) for index, optimizer in self._optimizers.items()}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        """The inverse of `state_dict`."""
        for index, optimizer in self._optimizers.items():
            load_optimizer_state(optimizer, state[str(index)])
