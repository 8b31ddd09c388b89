"""Metrics of classifiers."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from istbench.workloads.base import Batch


@torch.no_grad()
def classification_metrics(model: nn.Module, batches: Iterator[Batch], top: Sequence[int] = ()) -> dict[str, float]:
    """Metrics of a classifier in eval mode over `batches` of (inputs [b, ...], labels int64 [b]).

    Returns:
        `accuracy`: the share of samples whose label has the largest output. `topK`: the share whose label is among
        the k largest outputs, for every k in `top` below the number of classes. `loss`: mean cross entropy. NaN if
        there are no samples.
    """
    count, correct, loss = 0, 0, 0.0
    among: dict[int, int] = {}
    for inputs, labels in batches:
        outputs = model(inputs)
        correct += int((outputs.argmax(1) == labels).sum())
        for k in top:
            if k < outputs.shape[1]:
                hits = outputs.topk(k, dim=1).indices == labels[:, None]
                among[k] = among.get(k, 0) + int(hits.sum())
        loss += float(F.cross_entropy(outputs, labels, reduction="sum"))
        count += len(labels)
    if count == 0:
        return {"accuracy": float("nan"), "loss": float("nan")}
    return {
        "accuracy": correct / count,
        **{f"top{k}": hits / count for k, hits in among.items()},
        "loss": loss / count,
    }
