"""The server half of a node, and the memory of a model on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from istbench.methods.served.memory import StagedMemory
from istbench.methods.served.server import SliceOptimizer, SliceServer
from istbench.methods.served.slices import SendOrder, SlicedParameters


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}])
def test_an_update_of_a_slice_is_a_step_of_torch_bit_for_bit_and_leaves_the_own_gradient(options, own):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1001, generator=generator)
    expected = value.clone()
    slices = SliceOptimizer({0: value}, {0: torch.optim.SGD([value], lr=0.1, **options)}, own, world_size=3)
    theirs = torch.optim.SGD([expected], lr=0.1, **options)
    for rate in (0.3, 0.2):
        gradients = torch.randn(3, 1001, generator=generator)
        expected.grad = (gradients[0] + gradients[1] + gradients[2]) / 3
        kept = gradients[own].clone()
        slices.set_rate(0, rate)
        theirs.param_groups[0]["lr"] = rate
        for rank in (2, 0, 1):
            slices.contribute(0, rank, gradients[rank])
        assert slices.update(0)
        theirs.step()
        assert torch.equal(gradients[own], kept)
    slices.contribute(0, own, kept)
    for rank in {0, 1, 2} - {own}:
        slices.contribute(0, rank, None)
    assert slices.update(0)
    expected.grad = kept / 3
    theirs.step()
    assert torch.equal(value, expected)
    assert torch.equal(gradients[own], kept)


class Gradient(torch.Tensor):
    """A tensor that remembers which streams it is to be kept for."""

    def record_stream(self, stream):
        self.streams = [*getattr(self, "streams", []), stream]


def test_a_gradient_is_kept_for_the_stream_that_updates_by_it():
    fetched, updates = [], object()
    worker = SimpleNamespace(put=lambda jobs: [job() for _, job in jobs])
    memory = StagedMemory([torch.zeros(3)], SimpleNamespace(worker=lambda name: worker))
    gradient = torch.ones(3).as_subclass(Gradient)
    memory.fetch(0, gradient, fetched.append)
    assert not hasattr(gradient, "streams")
    memory._stream = updates
    memory.fetch(0, gradient, fetched.append)
    assert gradient.streams == [updates]
    assert [own.tolist() for own in fetched] == [[1.0] * 3] * 2


def test_gradients_arrive_in_host_memory_wherever_the_model_is():
    model = nn.Linear(3, 2, device="meta")  # stands for a GPU: numpy cannot reach its memory either
    parameters = SlicedParameters(model, 4, 0, world_size=2)
    memory = SimpleNamespace(
        empty=lambda slice: torch.zeros(slice.stop - slice.start), part=lambda slice: torch.zeros(0)
    )
    fabric = SimpleNamespace(rank=0, world_size=2, transport=None, device=torch.device("meta"))
    server = SliceServer(
        parameters, fabric, lambda parts, part_of: torch.optim.SGD(parts, lr=0.1), memory, None,
        SendOrder(3, priority=True),
        reply=lambda peers, index, payload: None, updated=lambda index: False,
    )  # fmt: skip
    assert len(server.buffer(1, 0)) == 4 * 4
