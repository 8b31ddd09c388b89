"""Heart beats of 187 samples in five unbalanced classes, by a 1-D network; macro F1. All are synthetic."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

metric, batch_size = "f1", 64
SHARES = torch.tensor([0.72, 0.05, 0.12, 0.03, 0.08])


def model():
    return nn.Sequential(
        nn.Conv1d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(8),
        nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 5),
    )  # fmt: skip


def data(train):
    count, random = (20_000 if train else 4_000), torch.Generator().manual_seed(1 if train else 2)
    classes = torch.multinomial(SHARES, count, replacement=True, generator=random)
    time, of = torch.linspace(0, 1, 187), classes[:, None]
    centre = 0.3 + 0.05 * torch.randn(count, 1, generator=random) + 0.05 * (of == 1)
    width = 0.02 + 0.012 * (of == 2) + 0.004 * torch.rand(count, 1, generator=random)
    beats = torch.exp(-(((time - centre) / width) ** 2))
    beats += (0.25 + 0.1 * (of == 3)) * torch.exp(-(((time - centre - 0.25) / 0.06) ** 2))
    beats -= 0.15 * (of == 4) * torch.exp(-(((time - centre + 0.05) / 0.015) ** 2))
    beats += 0.2 * torch.randn(count, 187, generator=random)
    return TensorDataset(beats[:, None], classes)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def evaluate(model, batches):
    total, count, pairs = 0.0, 0, torch.zeros(5, 5)
    for beats, classes in batches:
        outputs = model(beats)
        total += nn.functional.cross_entropy(outputs, classes, reduction="sum").item()
        count += len(classes)
        pairs += torch.bincount(5 * classes + outputs.argmax(1), minlength=25).view(5, 5)
    f1 = 2 * pairs.diag() / (pairs.sum(0) + pairs.sum(1)).clamp(min=1)
    return {"f1": f1.mean().item(), "loss": total / count}
