"""Passes of istbench's own leave no trace in the user's model."""

import torch
from torch import nn

from istbench.workloads.module_state import modules_kept


class Busy(nn.Module):
    """Its forward pass changes all that a module can hold."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.moved = nn.Linear(3, 4).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("late", None)
        self.calls, self.history, self.kept, self.plain = 0, [], {}, torch.zeros(4)

    def forward(self, x):
        h = self.norm(self.inner(x))
        with torch.no_grad():
            self.inner.bias.clamp_(-0.01, 0.01)
            self.moved.bias.data = self.moved.bias.data + 1
            self.moved.weight.mul_(0.9).add_(self.inner.weight)
        self.moved.weight.requires_grad_(True)
        self.mean, self.late = self.mean + 1, h.detach().mean(0)
        self.calls += 1
        self.history.append(self.calls)
        self.kept[self.calls] = self.new = 1
        self.plain += 1
        return h


def state_of(model):
    values = {name: value.clone() for name, value in model.state_dict().items()}
    memory = [own.data_ptr() for own in (*model.parameters(), *model.buffers())]
    trained = [own.requires_grad for own in model.parameters()]
    more = model.calls, list(model.history), dict(model.kept), model.plain.tolist(), model.late, sorted(vars(model))
    return values, (memory, trained, more, model.training)


def test_modules_are_afterwards_as_before():
    model = Busy()
    values, others = state_of(model)
    with modules_kept(model):
        model.eval()
        model.train()
        model(torch.rand(5, 3))
        assert state_of(model)[1] != others
    after, others_after = state_of(model)
    assert others_after == others
    assert after.keys() == values.keys()
    assert all(torch.equal(after[name], value) for name, value in values.items())


def test_some_modules_keep_their_new_statistics():
    model = Busy()
    with modules_kept(model, but=[model.norm]):
        model(torch.rand(5, 3))
    assert model.norm.num_batches_tracked == 1
    assert model.norm.running_mean.any()
    assert model.calls == 0
