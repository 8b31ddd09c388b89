"""The server half of a node."""

from types import SimpleNamespace

import torch
from torch import nn

from istbench.methods.served.server import SliceServer
from istbench.methods.served.slices import SendOrder, SlicedParameters


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
