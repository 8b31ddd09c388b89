"""Tensors in one flat buffer: values, memory order and alignment."""

import pytest
import torch
from torch import nn

from istbench.methods import flat
from istbench.methods.flat import flatten_in_place, places


@pytest.fixture
def aligned(monkeypatch):
    """Lay tensors of processors as on a GPU."""
    monkeypatch.setattr(flat, "_ALIGNED_ON", ("cpu",))


def tensors():
    filters = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    return [filters, nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(7).double()), torch.randn(2, 3)]


def test_flat_tensors_keep_their_values_and_memory_order():
    ours = tensors()
    before = [(tensor.detach().clone(), tensor.stride()) for tensor in ours]
    buffers = flatten_in_place(ours)
    assert [len(buffer) for buffer in buffers] == [48 + 5 + 6, 7]
    for tensor, (values, stride) in zip(ours, before, strict=True):
        assert torch.equal(tensor, values)
        assert tensor.stride() == stride
    buffers[0].zero_()
    assert not ours[0].any()
    assert not ours[3].any()


def test_every_tensor_begins_at_16_bytes_on_a_gpu(aligned):
    ours = tensors()
    before = [tensor.detach().clone() for tensor in ours]
    buffers = flatten_in_place(ours)
    assert [len(buffer) for buffer in buffers] == [48 + 8 + 8, 8]
    assert [tensor.data_ptr() % 16 for tensor in ours] == [0, 0, 0, 0]
    assert all(map(torch.equal, ours, before))
    assert buffers[0].count_nonzero() == 48 + 5 + 6
    assert places(ours[2]) == 8
