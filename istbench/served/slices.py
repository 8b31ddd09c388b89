"""Cutting a model's parameters into slices, and dealing those to the servers."""

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

    A slice has at most `slice_params` elements of one parameter. With 0, parameters stay whole, or, where they have
    more than `split_params` elements (and that is not 0), are cut in equal parts, one a node. Slices are dealt to
    the nodes by one counter across the whole model, so that no node gets every parameter's surplus slice.
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
