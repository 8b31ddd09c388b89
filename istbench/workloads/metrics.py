"""Metrics that workloads share."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from istbench.workloads.base import Batch


@torch.no_grad()
def classification_metrics(model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
    """Metrics of a classifier in eval mode over `batches` of (inputs [b, ...], labels int64 [b]).

    Returns:
        `accuracy`: the share of samples whose label has the largest output; `loss`: mean cross entropy. Both
        are NaN when there are no samples.
    """
    count, correct, loss = 0, 0, 0.0
    for inputs, labels in batches:
        outputs = model(inputs)
        correct += int((outputs.argmax(1) == labels).sum())
        loss += float(F.cross_entropy(outputs, labels, reduction="sum"))
        count += len(labels)
    if count == 0:
        return {"accuracy": float("nan"), "loss": float("nan")}
    return {"accuracy": correct / count, "loss": loss / count}
