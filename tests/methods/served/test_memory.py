"""Gradients on their way out of a GPU, which stands in here as what it is asked for."""

from types import SimpleNamespace

import torch

from istbench.methods.served.memory import StagedMemory


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
