"""The conformance checks behind `istbench check`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from istbench.base.cache import cache_directory
from istbench.base.error_lines import during, error_line, reason_of
from istbench.base.errors import RunFailed
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.optimizer import OptimizerOptions
from istbench.node.registry import build_method, load_method, names_of
from istbench.studies.conformance import of_methods, of_tasks, of_workloads
from istbench.studies.conformance.of_methods import CheckResult, DoesNotHold
from istbench.studies.conformance.training import open_workload


def check_method(
    name: str,
    *,
    nodes: int = 3,
    plugins: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> list[CheckResult]:
    """Train a small workload by method `name` on `nodes` real processes, and run the checks of every method.

    options: of the method, as typed; then no check compares one node with plain training.
    """
    checked = of_methods.CheckedMethod(name, plugins, options or {})
    build_method(name, checked.options, plugins=plugins)  # refuses wrong options in this process
    outcomes = _together(nodes, checked) or [_on_processes(check, nodes, checked) for check in of_methods.CHECKS]
    exact, loaded = of_methods.one_node_is_plain_training, load_method(name, plugins)
    if options:
        outcomes.append(CheckResult(_title(exact), "skipped", "only for the default options"))
    elif not issubclass(loaded.Options, OptimizerOptions):
        outcomes.append(CheckResult(_title(exact), "skipped", "its options are no OptimizerOptions"))
    elif loaded.exact_on_one_node:
        outcomes.append(_on_processes(exact, 1, checked))
    else:
        outcomes.append(CheckResult(_title(exact), "skipped", f"{name} does not claim it"))
    return outcomes


def check_workload(name: str, *, plugins: tuple[str, ...] = ()) -> list[CheckResult]:
    """Run the checks of every workload, on synthetic data or the data in the cache."""
    workload = open_workload(name, {}, plugins, cache=cache_directory())
    return [_here(check, workload) for check in of_workloads.CHECKS]


def check_task(file: Path, *, nodes: int = 3, plugins: tuple[str, ...] = ()) -> list[CheckResult]:
    """Check the functions of task file `file`, then train two steps by every method on one and two processes.

    A method that cannot take the file is skipped, with the reason. The first failure of a function ends the checks.
    A method that cuts the model names its neuron groups on `nodes` nodes.

    Raises:
        UserError: if the file lacks a function, or its data cannot be opened.
    """
    task, results = of_tasks.opened_task(file), list[CheckResult]()
    for check in of_tasks.checks_of(task):
        results.append(_here(check, task))
        if results[-1].outcome == "failed":
            return results
    results.extend(of_tasks.by_methods(file, names_of("methods", plugins), nodes, plugins))
    return results


def _together(nodes: int, checked: of_methods.CheckedMethod) -> list[CheckResult]:
    """All checks on one process group, which saves starting others. Empty if one of them fails."""
    try:
        details = on_nodes(of_methods.every_check, nodes, checked)[0]
    except RunFailed:
        return []
    return [
        CheckResult(_title(check), "holds", detail)
        for check, detail in zip(of_methods.CHECKS, details, strict=True)
    ]


def _on_processes(check: Callable[..., Any], nodes: int, checked: of_methods.CheckedMethod) -> CheckResult:
    title = _title(check)
    try:
        detail = on_nodes(check, nodes, checked)[0]
    except RunFailed as failure:
        return CheckResult(title, "failed", str(failure).partition("; its last lines")[0])
    return CheckResult(title, "holds", detail)


def _here(check: Callable[..., str], workload: Any) -> CheckResult:
    title = _title(check)
    try:
        with during("", workload.place("model"), of_libraries=True):
            return CheckResult(title, "holds", check(workload))
    except DoesNotHold as failure:
        return CheckResult(title, "failed", str(failure))
    except Exception as failure:  # a plug-in may raise anything
        fits_no_model = type(failure) is ValueError  # istbench's own words on neuron groups
        said = error_line(failure) or (str(failure) if fits_no_model else reason_of(failure))
        return CheckResult(title, "failed", said)


def _title(check: Callable[..., Any]) -> str:
    return check.__name__.replace("_", " ")
