"""Running statistics of BatchNorm layers, estimated anew for an assembled model."""

from collections.abc import Iterable

import torch
from torch import nn

from istbench.workloads.base import Batch, Workload

SAMPLES = 2048


def calibration_batches(workload: Workload, seed: int, batch_size: int = 256) -> Iterable[Batch]:
    """A fixed sample of at most `SAMPLES` training samples, drawn by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(workload.train_size, generator=generator)[:SAMPLES]
    # Chunks of equal size up to one: a last batch of one sample has no variance.
    for indices in chosen.chunk(max(1, len(chosen) // batch_size)):
        yield workload.train_batch(indices, generator)


def reestimate(model: nn.Module, workload: Workload, batches: Iterable[Batch]) -> None:
    """Replace every BatchNorm layer's running statistics by their average over `batches`.

    A subnet's fan-in is 1/n of the assembled model's, so statistics seen in training do not fit it. Layers
    keep their momentum and the model its mode; nothing happens to a model without BatchNorm.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms:
        return
    device = next(model.parameters()).device
    momenta = [norm.momentum for norm in norms]
    was_training = model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average
    try:
        with torch.no_grad():
            for inputs, targets in batches:
                workload.loss(model, (inputs.to(device), targets.to(device)))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(was_training)
