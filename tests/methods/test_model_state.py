"""A model of a checkpoint is that of before, also with buffers that its forward pass makes or enlarges."""

import torch
from torch import nn

from istbench.methods.model_state import load_model_state, model_state


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("made", None)
        self.register_buffer("larger", torch.zeros(1))
        self.register_buffer("left_out", torch.zeros(1), persistent=False)

    def forward(self, inputs):
        self.made = inputs.detach().mean(0)
        self.larger = torch.cat([self.larger, torch.ones(1)])
        self.left_out = torch.cat([self.left_out, torch.ones(1)])
        return self.layer(inputs)


def test_buffers_that_a_forward_pass_makes_or_enlarges_come_back():
    model, again = Growing(), Growing()
    for _ in range(2):
        model(torch.rand(3, 2))
    load_model_state(again, model_state(model))
    one, other = model_state(model), model_state(again)
    assert one.keys() == other.keys() >= {"made", "larger", "left_out", "layer.weight"}
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(again.larger) == 3
