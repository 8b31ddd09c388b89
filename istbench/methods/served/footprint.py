"""The memory of a served model on its busiest node, and its messages, before anything runs."""

from collections.abc import Sequence

import torch
from torch import nn

from istbench.methods.footprint import Footprint, trained
from istbench.methods.optimizer import OptimizerOptions
from istbench.methods.served.cut import Slice, cut
from istbench.methods.served.rounds import served_rounds

_MOST_SLICES = 20_000


def served_footprint(
    model: nn.Module,
    options: OptimizerOptions,
    world_size: int,
    *,
    slice_params: int,
    split_params: int,
    priority: bool,
    window: int,
    samples: int,
) -> Footprint:
    """The footprint of `ServedModel` with these options.

    A server has a buffer for the gradients of each peer, and the optimizer state of its own slices.
    """
    parameters = trained(model)
    sizes = [parameter.numel() for parameter in parameters]
    itemsize = max((parameter.element_size() for parameter in parameters), default=4)
    slices = _slices(sizes, slice_params, world_size, split_params)
    own = _busiest(slices, world_size) if slices is not None else -(-sum(sizes) // world_size)
    largest = min(slice_params or max(sizes, default=0), max(sizes, default=0))
    return Footprint(
        model=model,
        rounds=None if slices is None else served_rounds(slices, itemsize, priority),
        optimizer_state=len(options.slots) * own * itemsize,
        stepped=(torch.empty(largest, device="meta"),),
        build=options.build,
        samples=samples,
        buffers=(world_size - 1) * own * itemsize,
        window=window if priority else None,
    )


def _slices(
    sizes: Sequence[int], slice_params: int, world_size: int, split_params: int
) -> list[list[Slice]] | None:
    """The slices of each parameter; None if there are too many to list."""
    at_most = sum(-(-size // (slice_params or size or 1)) for size in sizes) * (1 if slice_params else world_size)
    return cut(sizes, slice_params, world_size, split_params=split_params) if at_most <= _MOST_SLICES else None


def _busiest(slices: Sequence[Sequence[Slice]], world_size: int) -> int:
    """The number of values that the busiest server serves."""
    served = [0] * world_size
    for slice in (slice for one in slices for slice in one):
        served[slice.server] += slice.stop - slice.start
    return max(served)
