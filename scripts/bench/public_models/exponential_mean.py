"""A teacher in the model: a moving mean of the student, kept in buffers (BYOL)."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(6, 6)
        self.register_buffer("teacher", self.student.weight.detach().clone())

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.teacher.lerp_(self.student.weight, 0.1)
        return self.student(x) + F.linear(x, self.teacher)


def model():
    return Net()


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    points = [torch.rand(8, 6, generator=draws) for _ in range(4)]
    return [(some, some.sin()) for some in points]


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
