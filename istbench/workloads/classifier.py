"""The base class of classifiers: cross entropy and accuracy."""

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from istbench.workloads.base import Batch, Workload


class Classifier(Workload):
    """A workload whose model gives a score for each class; its batches are inputs [b, ...] and classes int64 [b].

    top: values of k for the metric `topK`, the share of samples with their class among the k largest outputs. Only
        values below the number of classes count.
    """

    metric = "accuracy"
    metrics_are_means = True
    top: ClassVar[tuple[int, ...]] = ()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, classes = batch
        return F.cross_entropy(model(inputs), classes)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """`accuracy`: the share of samples whose class has the largest output; `topK`; `loss`: cross entropy.

        NaN if there are no samples.
        """
        count, correct, loss = 0, 0, 0.0
        among: dict[int, int] = {}
        for inputs, classes in batches:
            outputs = model(inputs)
            correct += int((outputs.argmax(1) == classes).sum())
            for k in self.top:
                if k < outputs.shape[1]:
                    hits = outputs.topk(k, dim=1).indices == classes[:, None]
                    among[k] = among.get(k, 0) + int(hits.sum())
            loss += float(F.cross_entropy(outputs, classes, reduction="sum"))
            count += len(classes)
        sums = {"accuracy": correct, **{f"top{k}": hits for k, hits in among.items()}, "loss": loss}
        return {name: value / count if count else math.nan for name, value in sums.items()}
