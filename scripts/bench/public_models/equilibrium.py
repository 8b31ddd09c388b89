"""A deep equilibrium model: a hook of the backward pass solves for the gradient."""

import torch
from of_points import data as data
from of_points import loss as loss
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)

    def step(self, state, x):
        return torch.tanh(0.3 * self.inner(state) + self.outer(x))

    def forward(self, x):
        state = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(20):
                state = self.step(state, x)
        state = self.step(state, x)
        if not state.requires_grad:
            return state
        fixed = state.detach().requires_grad_()
        again = self.step(fixed, x)

        def solve(gradient):
            found = gradient
            for _ in range(20):
                found = torch.autograd.grad(again, fixed, found, retain_graph=True)[0] + gradient
            return found

        state.register_hook(solve)
        return state


def model():
    return Net()
