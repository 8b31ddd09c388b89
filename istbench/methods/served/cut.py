"""The slices of parameters of given sizes, and the server of each. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass


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
