"""Slices cover every parameter once, and no server gets more than its share."""

import pytest

from istbench.methods.served.messages import cut


@pytest.mark.parametrize("slice_params", [0, 1, 7, 1_000])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_slices_cover_every_element_once(slice_params, world_size):
    sizes = [100, 7, 1, 0, 15]
    slices = cut(sizes, slice_params, world_size)
    for size, parameter in zip(sizes, slices, strict=True):
        assert [k for slice in parameter for k in range(slice.start, slice.stop)] == list(range(size))
        assert all(slice.stop - slice.start <= (slice_params or size) for slice in parameter)
    flat = [slice for parameter in slices for slice in parameter]
    assert [slice.index for slice in flat] == list(range(len(flat)))
    assert all(slices[slice.parameter][0].parameter == slice.parameter for slice in flat)


def test_one_counter_deals_surplus_slices_evenly():
    """Ten parameters of five slices each: a counter that restarts would give server 0 ten more than server 1."""
    flat = [slice for parameter in cut([50] * 10, 10, 4) for slice in parameter]
    counts = [sum(slice.server == server for slice in flat) for server in range(4)]
    assert max(counts) - min(counts) <= 1


def test_whole_parameters_are_one_slice():
    assert [len(parameter) for parameter in cut([1, 2_000_000], 0, 2)] == [1, 1]


def test_large_parameters_are_split_evenly_over_all_nodes():
    small, large = cut([100, 103], 0, 4, split_params=100)
    assert [(slice.start, slice.stop) for slice in small] == [(0, 100)]
    assert [slice.stop - slice.start for slice in large] == [26, 26, 26, 25]
    assert {slice.server for slice in large} == {0, 1, 2, 3}
