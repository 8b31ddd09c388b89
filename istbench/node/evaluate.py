"""Evaluating an assembled model, the same way for every method.

BatchNorm's running statistics are estimated anew on training batches before every evaluation, as in
torch.optim.swa_utils.update_bn. A subnet's statistics do not fit the model it is assembled into, and those that
data parallel or local SGD carry along lag behind fast-moving weights by a few points of accuracy: a comparison
would measure the statistics, not the training. They are never taken from test batches, which would make the
accuracy depend on the order of the test set.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from istbench.workloads.base import Batch, Workload

_CALIBRATION_SAMPLES = 2048
_CALIBRATION_BATCH = 256


def evaluate(model: nn.Module, workload: Workload, device: torch.device) -> dict[str, float]:
    """Metrics of `model` over the workload's test split; leaves the model's mode as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return workload.evaluate(model, _on(device, workload.test_batches()))
    finally:
        model.train(was_training)


@contextmanager
def calibrated(model: nn.Module, workload: Workload, seed: int, device: torch.device) -> Iterator[nn.Module]:
    """`model` with its BatchNorm statistics averaged over a fixed sample of training data, drawn by `seed`.

    Restores the statistics afterwards, so that `model` may be the one in training. Nothing happens to a model
    without BatchNorm.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    layers = [layer for layer in layers if layer.track_running_stats]
    before = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers]
    if layers:
        _estimate(model, layers, workload, _on(device, _calibration_batches(workload, seed)))
    try:
        yield model
    finally:
        for layer, buffers in zip(layers, before, strict=True):
            for name, buffer in layer.named_buffers():
                buffer.copy_(buffers[name])


def _estimate(
    model: nn.Module,
    layers: list[nn.modules.batchnorm._BatchNorm],
    workload: Workload,
    batches: Iterator[Batch],
) -> None:
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    try:
        with torch.no_grad():
            for batch in batches:
                workload.loss(model, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(was_training)


def _calibration_batches(workload: Workload, seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(workload.train_size, generator=generator)[:_CALIBRATION_SAMPLES]
    if len(chosen) == 1:  # which has no variance by itself
        chosen = chosen.repeat(2)
    # Chunks of equal size up to one: a last batch of a single sample has no variance.
    for indices in chosen.chunk(max(1, len(chosen) // _CALIBRATION_BATCH)):
        yield workload.train_batch(indices, generator)


def _on(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    return ((inputs.to(device), targets.to(device)) for inputs, targets in batches)
