"""Evaluating the full model, the same way for every method.

Every evaluation first estimates BatchNorm's running statistics on training batches, as in
torch.optim.swa_utils.update_bn. The statistics of a subnet do not fit the assembled model. Those of data parallel
or local SGD lag behind fast-moving weights by a few points of accuracy: a comparison would measure the statistics,
not the training. Test batches never give the statistics: the accuracy would then depend on the order of the test
set.

Noise in the statistics costs accuracy, most of all in the last layer, where it favours some classes. Fewer samples
are as good if every class has its proportion of them (docs/measuring.md, "Evaluation").
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from istbench.base.activity import current
from istbench.workloads.base import Batch, Workload
from istbench.workloads.contract import checked_metrics, some_test_batches
from istbench.workloads.module_state import modules_kept
from istbench.workloads.neuron_groups.layout import is_frozen_layer

_SAMPLES_BY_CLASS = 768
_SAMPLES_AT_RANDOM = 2048


def evaluate(
    model: nn.Module, workload: Workload, device: torch.device, batches: Iterator[Batch] | None = None
) -> dict[str, float]:
    """Metrics of `model` over `batches`, by default the test split; the model is afterwards as before."""
    # Only a user's own object can change while it evaluates: a copy of the values of others would be for nothing.
    kept = modules_kept(model) if workload.start_sums() else _modes_kept(model)
    with kept, torch.no_grad():
        model.eval()
        found = workload.evaluate(model, _on(device, batches or some_test_batches(workload)))
        return checked_metrics(workload, found)


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards each module has its mode of before: a layer may stay in evaluation mode while the others train."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def metrics_by(
    compute: Callable[[Iterator[Batch]], dict[str, float]], workload: Workload, device: torch.device
) -> dict[str, float]:
    """The same metrics of a model that lies in no place as a whole; `compute` computes them on the test split."""
    with torch.no_grad():
        return checked_metrics(workload, compute(_on(device, some_test_batches(workload))))


@contextmanager
def calibrated(model: nn.Module, workload: Workload, seed: int, device: torch.device) -> Iterator[nn.Module]:
    """`model` with BatchNorm statistics that are averages over a fixed sample of training data, drawn by `seed`.

    If the workload knows classes, the sample has every class in its proportion; otherwise it is larger. The old
    statistics come back afterwards, because `model` may be in training. A model without BatchNorm does not change.
    """
    classes = workload.train_classes()
    samples = _SAMPLES_AT_RANDOM if classes is None else _SAMPLES_BY_CLASS
    batches = calibration_batches(workload, seed, samples, workload.evaluated_at_once, classes)
    with statistics_of(model, workload, _on(device, batches)):
        yield model


@contextmanager
def statistics_of(model: nn.Module, workload: Workload, batches: Iterable[Batch]) -> Iterator[None]:
    """Inside, BatchNorm statistics of `model` are the mean over `batches`, whose sizes differ by one at most."""
    layers = statistics_layers(model)
    before = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers]
    if layers:
        _estimate(model, layers, workload, batches)
    try:
        yield
    finally:
        for layer, buffers in zip(layers, before, strict=True):
            for name, buffer in layer.named_buffers():
                buffer.copy_(buffers[name])


def statistics_layers(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers of `model` with running statistics, without frozen ones, which keep theirs in training too."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [layer for layer in layers if layer.track_running_stats and not is_frozen_layer(model, layer)]


def _estimate(
    model: nn.Module,
    layers: list[nn.modules.batchnorm._BatchNorm],
    workload: Workload,
    batches: Iterable[Batch],
) -> None:
    with modules_kept(model, but=layers), workload.state_kept(), torch.no_grad():
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a cumulative average
        if not model.training:
            model.train()
        for batch in batches:
            workload.loss(model, batch)


def calibration_batches(
    workload: Workload, seed: int, samples: int, batch: int, classes: Tensor | None = None
) -> Iterator[Batch]:
    """At most `samples` training samples, drawn by `seed`, in batches of at least `batch`.

    Data whose batches nodes take in turn gives its first batches.

    Sizes of batches differ by one at most. With `classes`, the class of every training sample, each batch has the
    classes in the same proportions.
    """
    generator = torch.Generator().manual_seed(seed)
    if workload.in_turn:
        size = workload.batch_size
        for first in range(0, min(samples, workload.train_size), size):
            yield workload.train_batch(torch.arange(first, first + size), generator)
        return
    chosen = torch.randperm(workload.train_size, generator=generator)
    if classes is not None:  # samples at equal distances in the order of classes
        ordered = chosen[classes[chosen].argsort(stable=True)]
        count = min(samples, len(ordered))
        chosen = ordered[torch.arange(count) * len(ordered) // count]
    chosen = chosen[:samples]
    if len(chosen) == 1:  # one sample has no variance
        chosen = chosen.repeat(2)
    # Nearly equal sizes: a last batch of a single sample has no variance.
    parts = max(1, len(chosen) // batch)
    for part in range(parts):
        yield workload.train_batch(chosen[part::parts], generator)


def _on(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    return ((inputs.to(device), targets.to(device)) for inputs, targets in current.timing(batches))
