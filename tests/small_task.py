"""A small task file: classes of points, an accuracy, and neuron groups to find."""

TASK = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size = 16


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def data(train):
    points = torch.randn(512 if train else 128, 8, generator=torch.Generator().manual_seed(int(train)))
    return TensorDataset(points, points[:, :4].argmax(1))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model, batches):
    right = [model(points).argmax(1) == classes for points, classes in batches]
    return {"accuracy": torch.cat(right).float().mean()}
"""

# Behind TASK: while there is a file HELD, steps are slow, and the file then says "training".
SLOW = """
import pathlib, time

passes, whole_loss = 0, loss

def loss(model, batch):
    global passes
    held = pathlib.Path("HELD")
    if held.exists() and not batch[0].is_meta:  # as in a plan
        passes += 1
        if passes >= 20:  # beyond those before training
            held.write_text("training")
        time.sleep(0.05)
    return whole_loss(model, batch)
"""


def write_task(path):
    """Write the task file to `path`; returns it."""
    path.write_text(TASK)
    return path
