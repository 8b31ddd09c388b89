"""The checks of a task file: its functions one after another, then two steps by every method."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from istbench.base.cache import cache_directory
from istbench.base.error_lines import during, reason_of
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.base.units import counted
from istbench.fabric import Fabric, FabricError
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.base import CutsUnits
from istbench.methods.dealt_groups import check_groups, dealt_groups, whole_groups
from istbench.node.evaluate import evaluate
from istbench.node.model_proof import prove_model
from istbench.node.registry import build_method, load_method
from istbench.studies.conformance.of_methods import CheckResult, DoesNotHold
from istbench.studies.conformance.of_workloads import metric_before_training
from istbench.studies.conformance.training import assembled, open_workload, set_up, train
from istbench.workloads.contract import blank_model
from istbench.workloads.neuron_groups.groups import NeuronGroup, named_tensors, validate_groups
from istbench.workloads.task import TaskWorkload

_STEPS = 2
_NODES = (1, 2)
_NAMED = 4
_TIMEOUT_S = 60.0


def opened_task(file: Path) -> TaskWorkload:
    """The workload of task file `file`, with its data open.

    Raises:
        UserError: for the first mistake in its functions.
    """
    workload = open_workload(str(file), {}, cache=cache_directory())
    assert isinstance(workload, TaskWorkload)
    return workload


def the_model(task: TaskWorkload) -> str:
    """`model()` builds the same model from the same seed."""
    one, other = (task.task_model.built(0) for _ in range(2))
    pairs = zip(named_tensors(one).items(), named_tensors(other).values(), strict=True)
    for name, same in ((name, torch.equal(a, b)) for (name, a), b in pairs):
        if not same:
            raise task.file.wrong("model", f"{name} differs between two models of one seed; it should draw its "
                                  "random numbers from torch, NumPy or Python's random")  # fmt: skip
    return f"{type(one).__name__}, {_parameters(one):,} parameters, the same from the same seed"


def the_data(task: TaskWorkload) -> str:
    """`data(train)` gives the same batch again."""
    indices = torch.arange(min(task.batch_size, task.train_size))
    with task.file.watched("data"):
        (one, _), (other, _) = (task.train_batch(indices, torch.Generator().manual_seed(0)) for _ in range(2))
    if not one.equal(other):
        raise task.file.wrong("data", "gives other samples the second time; it should draw its random numbers from "
                              "torch, NumPy or Python's random")  # fmt: skip
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in one.tensors)
    splits = task.split(True), task.split(False)
    sizes = "{:,} training and {:,} test samples".format(*(split.count for split in splits))
    if any(split.in_turn for split in splits) and task.file.settings.samples is None:
        sizes += " if every batch has as many as the first"
    return f"{sizes}; a batch: {shapes}{'; every n-th batch for a node' if task.in_turn else ''}"


def the_loss(task: TaskWorkload) -> str:
    """The loss is a finite scalar; names parameters without a gradient, and attributes that forward changes."""
    idle, unsaved = task.trial()
    said = ["a finite scalar" if idle else "a finite scalar, with a gradient for every parameter"]
    said += [f"two batches gave no gradient to {_some(idle)}"] if idle else []
    said += [f"forward changes {_some(unsaved)}, which no checkpoint holds; use a buffer"] if unsaved else []
    return "; ".join(said)


def the_metric(task: TaskWorkload) -> str:
    """Evaluating the first test batches gives the metric."""
    model, computes = task.task_model.built(0), task.file.first_of("evaluate", "loss", "model")
    with task.file.watched(computes):
        metrics = evaluate(model, task, torch.device("cpu"), islice(task.test_batches(), 2))
    try:
        return metric_before_training(task, metrics[task.metric])
    except DoesNotHold as problem:
        raise task.file.wrong(computes, str(problem)) from None


def the_neuron_groups(task: TaskWorkload) -> str:
    """The groups that the file names fit the model, and another order of their units does not change the loss."""
    model = blank_model(task)
    groups = task.neuron_groups(model)
    validate_groups(model, groups)
    unproved = task.prove_groups(groups)
    return f"{_listed(groups)}; {unproved or 'another order of their units changes nothing'}"


_FUNCTIONS: tuple[Callable[[TaskWorkload], str], ...] = (the_model, the_data, the_loss, the_metric)


def checks_of(task: TaskWorkload) -> tuple[Callable[[TaskWorkload], str], ...]:
    """The checks of the functions of `task`."""
    return (*_FUNCTIONS, the_neuron_groups) if "neuron_groups" in task.file else _FUNCTIONS


def by_methods(file: Path, methods: Sequence[str], nodes: int, plugins: tuple[str, ...]) -> Iterator[CheckResult]:
    """The result of training by each of `methods`; neuron groups on `nodes`."""
    task = opened_task(file)
    refused: dict[str, str] = {}
    for name in methods:
        request = RunRequest(
            workload=str(file), method=name, nodes=_NODES[-1], steps=_STEPS, threads=1, plugins=plugins
        )
        try:
            prepare_cell(request, lambda *_: None)
            prove_model(task, load_method(name, plugins), _NODES[-1])
        except Exception as error:  # a library may raise anything on the user's model
            refused[name] = reason_of(error)
    able = [name for name in methods if name not in refused]
    problems = [_trained(str(file), count, able, plugins) for count in _NODES]
    for name in methods:
        if name in refused:
            yield CheckResult(name, "skipped", refused[name])
            continue
        failed = [(count, found[name]) for count, found in zip(_NODES, problems, strict=True) if found[name]]
        if failed:
            count, problem = failed[0]
            yield CheckResult(name, "failed", f"on {counted(count, 'node')}: {problem}")
        else:
            cuts = issubclass(load_method(name, plugins), CutsUnits)
            yield CheckResult(name, "holds", _dealt(name, task, nodes, plugins) if cuts else "trains")


def two_steps(
    fabric: Fabric, file: str, plugins: tuple[str, ...], methods: Sequence[str]
) -> tuple[list[str], bool]:
    """Train `file` by each of `methods`, up to the first problem.

    Returns their problems, empty where there is none, and whether the last one is that another rank went away.
    """
    workload = open_workload(file, {}, plugins)
    problems: list[str] = []
    for name in methods:
        try:
            with during(f"training it by {name}", workload.place("model"), of_libraries=True):
                method = set_up(fabric, workload, name, {}, plugins=plugins, steps=_STEPS)
                train(fabric, workload, method, 0, _STEPS)
                if _STEPS % method.round_steps:
                    method.close_round()
                method.drain()
                assembled(fabric, method)
        except Exception as error:  # the user's code may raise anything
            return [*problems, reason_of(error)], isinstance(error, FabricError)
        problems.append("")
    return problems, False


def _first_problems(ranks: Sequence[tuple[list[str], bool]]) -> list[str]:
    """The problems of the rank that failed first; others fail as they lose it. ranks: results of `two_steps`."""
    failed = [found for found in ranks if any(found[0])]
    return min(failed or ranks, key=lambda found: found[1])[0]


def _trained(file: str, nodes: int, methods: Sequence[str], plugins: tuple[str, ...]) -> dict[str, str]:
    """The problem of each of `methods` on `nodes` nodes, empty where there is none.

    All train in one process group, which saves starting others. After a problem the others get a new one.
    """
    problems: dict[str, str] = {}
    left = list(methods)
    while left:
        try:
            found = _first_problems(on_nodes(two_steps, nodes, file, plugins, left, timeout_s=_TIMEOUT_S))
        except RunFailed as failure:
            if len(left) == 1:
                found = [str(failure).partition("; its last lines")[0]]
            else:
                return {
                    **problems,
                    **{n: p for name in left for n, p in _trained(file, nodes, [name], plugins).items()},
                }
        problems.update(zip(left, found, strict=False))
        left = left[len(found) :]
    return problems


def _dealt(method: str, task: TaskWorkload, nodes: int, plugins: tuple[str, ...]) -> str:
    """The neuron groups that `method` deals to `nodes` nodes, their share of the parameters, and whole modules."""
    model = blank_model(task)
    options = build_method(method, {}, workload=task, plugins=plugins).options
    try:
        check_groups(method, model, task, nodes, options)
    except UserError as refusal:
        return f"trains on {_NODES[-1]} nodes; {refusal}"
    groups = dealt_groups(model, task, nodes, options)
    dealt = {slot.tensor for group in groups for slot in group.slots}
    named = dict(model.named_parameters())
    share = sum(own.numel() for name, own in named.items() if name in dealt) / _parameters(model)
    counted = "1 neuron group" if len(groups) == 1 else f"{len(groups)} neuron groups"
    said = [f"trains; {share:.0%} of the parameters are dealt in {counted}: {_listed(groups)}"]
    said += [_scaled(groups), whole_groups(model, task, nodes, options)]
    if "neuron_groups" not in task.file:
        whole = task.found_groups().obstacles()[:_NAMED]
        said.append(f"whole: {', '.join(whole)}" if whole else "")
    return "; ".join(filter(None, said))


def _scaled(groups: Sequence[NeuronGroup]) -> str:
    """The groups whose sums a subnet scales, and those whose sums the code of the model scales."""
    own, scaled = ([one for one in groups if one.sums and one.scales_itself == itself] for itself in (True, False))
    by_model = f"the model itself scales the sums of {_listed(own)}" if own else ""
    by_subnet = f"a subnet scales the sums of {_listed(scaled)}" if scaled else ""
    return "; ".join(filter(None, (by_subnet, by_model)))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _listed(groups: Sequence[NeuronGroup]) -> str:
    names = [f"{group.name} ({group.size})" for group in groups[:_NAMED]]
    return ", ".join([*names, *(["..."] if len(groups) > _NAMED else [])])


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
