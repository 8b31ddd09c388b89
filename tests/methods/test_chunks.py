"""The largest entries of chunks, their message, and their mean over the nodes that sent them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from istbench.methods.sparseloco import LARGEST_CHUNK, Chunks, mean_of_sent

SIZES = st.tuples(st.integers(1, 200), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))


def dense(chunks, places, values):
    found = torch.zeros(chunks.length, dtype=values.dtype)
    found[places] = values
    return found


@settings(max_examples=40, deadline=None)
@given(SIZES)
def test_each_chunk_gives_its_largest_and_what_is_sent_and_kept_is_all(sizes):
    length, size, top, seed = sizes
    chunks = Chunks(length, size, min(top, size))
    values = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    places = chunks.largest(values)
    assert len(places) == chunks.sent == len(set(places.tolist()))
    kept = values.clone()
    kept[places] = 0
    assert torch.equal(dense(chunks, places, values[places]) + kept, values)
    chosen = torch.zeros(length, dtype=torch.bool)
    chosen[places] = True
    for first in range(0, length, size):
        own, picked = values[first : first + size].abs(), chosen[first : first + size]
        assert picked.sum() == min(chunks.top, len(own))
        assert picked.all() or own[picked].min() >= own[~picked].max()


@settings(max_examples=40, deadline=None)
@given(SIZES, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_a_message_gives_back_places_and_values_bit_for_bit(sizes, dtype):
    length, size, top, seed = sizes
    chunks = Chunks(length, size, min(top, size))
    values = torch.randn(length, generator=torch.Generator().manual_seed(seed)).to(dtype)
    places = chunks.largest(values)
    message = chunks.packed(values, places)
    assert (message.dtype, message.nbytes) == (torch.uint8, chunks.message_bytes(dtype))
    # As one row of many it may start anywhere.
    rows = torch.cat([message, message]).split(len(message))
    for row in rows:
        found, sent = chunks.unpacked(row, dtype)
        assert torch.equal(found, places)
        assert torch.equal(sent, values[places])


@pytest.mark.parametrize(("size", "each"), [(256, 5), (257, 6), (4096, 6), (LARGEST_CHUNK, 6)])
def test_a_sent_entry_takes_its_value_and_one_or_two_bytes(size, each):
    chunks = Chunks(2 * size, size, 1)
    values = torch.zeros(2 * size)
    values[[size - 1, 2 * size - 1]] = torch.tensor([-3.0, 4.0])
    message = chunks.packed(values, chunks.largest(values))
    assert message.nbytes == 2 * each
    places, sent = chunks.unpacked(message, values.dtype)
    assert places.tolist() == [size - 1, 2 * size - 1]
    assert sent.tolist() == [-3.0, 4.0]


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_of_equal_entries_as_many_are_sent_as_of_others(value):
    chunks = Chunks(11, 4, 2)
    values = torch.full((11,), value)
    places = chunks.largest(values)
    assert sorted(place // 4 for place in places.tolist()) == [0, 0, 1, 1, 2, 2]
    assert torch.equal(chunks.largest(values), places)


def test_the_mean_is_over_the_nodes_that_sent_an_entry():
    sent = [
        (torch.tensor([0, 2]), torch.tensor([1.0, 4.0])),
        (torch.tensor([2, 3]), torch.tensor([-2.0, 0.0])),
        (torch.tensor([3, 2]), torch.tensor([5.0, 1.0])),
    ]
    mean = mean_of_sent(sent, torch.zeros(5))
    assert mean.tolist() == [1.0, 0.0, 1.0, 2.5, 0.0]  # a zero that was sent counts
    over_all = mean_of_sent(sent, torch.zeros(5), nodes=4)
    assert over_all.tolist() == [0.25, 0.0, 0.75, 1.25, 0.0]
