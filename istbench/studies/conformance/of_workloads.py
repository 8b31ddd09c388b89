"""The checks of every workload. Each takes a workload with open data and returns its observation."""

import copy
import math
from collections.abc import Callable
from itertools import islice

import torch
from torch import nn

from istbench.results.metrics import value_text
from istbench.studies.conformance.of_methods import DoesNotHold
from istbench.studies.conformance.training import initial_model
from istbench.workloads.base import Batch, Workload
from istbench.workloads.contract import blank_model, check_attributes, checked_metrics, checked_targets, metric_of
from istbench.workloads.neuron_groups.groups import permute_units, validate_groups
from istbench.workloads.neuron_groups.proof import random_values

_BATCH = 32
_EXACT = 1e-4


def permuting_hidden_units_changes_nothing(workload: Workload) -> str:
    """A random order of the units of any neuron group leaves the network's function unchanged."""
    model = initial_model(workload)
    groups = workload.neuron_groups(model)
    if not groups:
        return "no neuron groups declared"
    validate_groups(model, groups)
    random_values(model)
    batch = _batch(workload)
    before = _loss(workload, model, batch)
    for group in groups:
        permuted = copy.deepcopy(model)
        permute_units(permuted, group, torch.randperm(group.size))
        after = _loss(workload, permuted, batch)
        if not abs(after - before) <= _EXACT * max(1.0, abs(before)):  # also not for a NaN
            raise DoesNotHold(f"permuting {group.name!r} moves the loss from {before:.6f} to {after:.6f}")
    return f"{len(groups)} groups: {', '.join(f'{group.name} ({group.size})' for group in groups)}"


def a_wide_softmax_is_cut_whole(workload: Workload) -> str:
    """A declared wide softmax cuts each parameter by units or by outputs, and its parts have fitting shapes."""
    with torch.device("meta"):
        model = workload.build_model()
        softmax = workload.wide_softmax(model)
        if softmax is None:
            return "no wide softmax declared"
        part = softmax.part(1, range(1, 3))
    validate_groups(model, [softmax.units, softmax.outputs])
    named, cuts = dict(model.named_parameters()), softmax.cuts()
    slots = len(softmax.units.slots) + len(softmax.outputs.slots)
    if cuts.keys() != named.keys() or slots != len(cuts) or list(model.buffers()):
        raise DoesNotHold(f"the cuts name {', '.join(cuts)}; name each of {', '.join(named)} once, without buffers")
    for name, own in part.named_parameters():
        group, dim = cuts[name]
        shape = list(named[name].shape)
        shape[dim] = 1 if group == softmax.units else 2
        if list(own.shape) != shape:
            raise DoesNotHold(f"{name} of a part with one unit and two outputs has shape {tuple(own.shape)}")
    return f"{softmax.units.size} units and {softmax.outputs.size} outputs, each parameter cut once"


def rows_are_the_full_models_rows(workload: Workload) -> str:
    """Any rows of any parameter start as they do in the full model, and another seed starts differently."""
    model = blank_model(workload)
    for name, parameter in model.named_parameters():
        whole = workload.initial_rows(model, name, None, 0)
        if whole.shape != parameter.shape:
            raise DoesNotHold(f"{name} starts with shape {tuple(whole.shape)}, not {tuple(parameter.shape)}")
        if parameter.dim():
            some = torch.randperm(parameter.shape[0])[: 1 + parameter.shape[0] // 3]
            if not torch.equal(workload.initial_rows(model, name, some, 0), whole[some]):
                raise DoesNotHold(f"rows of {name} made alone differ from the full parameter's")
        varied = whole.numel() > 1 and whole.std() > 0
        if varied and torch.equal(workload.initial_rows(model, name, None, 1), whole):
            raise DoesNotHold(f"{name} starts the same with another seed")
    return "made alone or whole, bit for bit"


def every_parameter_learns(workload: Workload) -> str:
    """The loss of a training batch is finite and reaches every parameter."""
    model = initial_model(workload)
    loss = workload.loss(model, _batch(workload))
    if not torch.isfinite(loss):
        raise DoesNotHold(f"the loss of a training batch is {loss.item()}")
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise DoesNotHold(f"{name} gets no gradient")
    return f"initial loss {loss.item():.4f}"


def the_metric_is_reported(workload: Workload) -> str:
    """Evaluation gives the workload's metric as a finite number. Some target, if any, needs training."""
    check_attributes(workload)
    model = initial_model(workload).eval()
    with torch.no_grad():
        metrics = workload.evaluate(model, islice(workload.test_batches(), 2))
    return metric_before_training(workload, checked_metrics(workload, metrics)[workload.metric])


def metric_before_training(workload: Workload, value: float) -> str:
    """The metric of an untrained model, `value`, and its direction.

    Raises:
        DoesNotHold: if it is not finite, or reaches every target.
    """
    metric = metric_of(workload)
    if not math.isfinite(value):
        raise DoesNotHold(f"{metric.name} is {value} before training; it must be a finite number")
    targets = checked_targets(workload)
    if targets and all(metric.reached(value, target) for target in targets):
        raise DoesNotHold(
            f"every target is reached before training: {metric.name} is {value_text(value)}, and "
            f"{metric.direction}; correct lower_is_better or targets"
        )
    return f"{metric.name} {value_text(value, 4)} before training, {metric.direction}"


def shares_of_the_samples_give_the_metrics_of_all(workload: Workload) -> str:
    """If metrics are declared as means over samples, uneven shares of the samples give the metrics of all."""
    if not workload.metrics_are_means:
        return "not declared as means"
    model = initial_model(workload).eval()
    random_values(model)
    inputs, targets = next(workload.test_batches())
    first = max(1, len(targets) // 3)
    shares = [(inputs[:first], targets[:first]), (inputs[first:], targets[first:])]
    with torch.no_grad():
        whole = workload.evaluate(model, iter([(inputs, targets)]))
        parts = [(len(share[1]), workload.evaluate(model, iter([share]))) for share in shares if len(share[1])]
    for name, value in whole.items():
        mean = sum(count * metrics.get(name, math.nan) for count, metrics in parts) / len(targets)
        if not abs(mean - value) <= _EXACT * max(1.0, abs(value)):
            raise DoesNotHold(f"{name} of a third and the rest of a batch comes to {mean:.6f}, of all {value:.6f}")
    return f"{', '.join(whole)} of {len(targets)} samples"


def batches_repeat(workload: Workload) -> str:
    """The same indices and augmentation seed give the same training batch."""
    one, other = _batch(workload), _batch(workload)
    if not all(a.equal(b) for a, b in zip(one, other, strict=True)):
        raise DoesNotHold("the same indices and seed give another batch")
    return f"{workload.train_size} training samples of shape {tuple(one[0].shape[1:])}"


CHECKS: tuple[Callable[[Workload], str], ...] = (
    permuting_hidden_units_changes_nothing,
    a_wide_softmax_is_cut_whole,
    rows_are_the_full_models_rows,
    every_parameter_learns,
    the_metric_is_reported,
    shares_of_the_samples_give_the_metrics_of_all,
    batches_repeat,
)


def _batch(workload: Workload) -> Batch:
    count = min(_BATCH, workload.train_size)
    return workload.train_batch(torch.arange(count), torch.Generator().manual_seed(0))


def _loss(workload: Workload, model: nn.Module, batch: Batch) -> float:
    model.eval()
    with torch.no_grad():
        return float(workload.loss(model, batch))
