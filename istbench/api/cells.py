"""Training of cells: one, or many that are compared. Commands and the functions of Python share it."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from istbench.api.arguments import from_python, in_python, texts
from istbench.base.decode import convert
from istbench.base.errors import RunFailed, UserError, unknown_name
from istbench.base.options.numbers import Count, Restarts
from istbench.base.options.run import OF_MACHINE, RUN_OPTIONS, RunRequest
from istbench.base.options.suite import Suite, check_cells, read_suite
from istbench.launch.backends.backend import Backend, Outcome, failure_lines
from istbench.launch.backends.here import Here
from istbench.launch.cells.controls import at_equal_cost, on_few_nodes, one_machine
from istbench.launch.cells.known import finished
from istbench.node.registry import check_name, own_options

if TYPE_CHECKING:
    from istbench.api.progress import Display
    from istbench.api.results import Results
    from istbench.api.task import Task
    from istbench.results.load import Run

METHODS = ("ist", "local_sgd", "ddp")
"""Methods of a comparison, unless the user names others."""

_OPTIONS = tuple(option.name for option in RUN_OPTIONS)
_OF_SUITES = tuple(option.name for option in RUN_OPTIONS if option.in_suites)


@from_python
def run(
    workload: "str | Path | Task",
    method: str,
    nodes: int = 2,
    *,
    out: str | Path = "results",
    again: bool = False,
    restarts: int = 0,
    quiet: bool = False,
    method_options: Mapping[str, Any] | None = None,
    workload_options: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Path] = (),
    **options: Any,
) -> "Run":
    """Train one cell on this machine, as `istbench run` does: a workload, a method and a number of nodes.

    The same call again resumes an interrupted run, and returns the results of a finished one.

    Args:
        workload: A name, the path of a task file, or a `Task`.
        method: A name.
        nodes: Worker processes on this machine.
        out: The results directory.
        again: Delete the results of the cell, and run it again.
        restarts: How often it goes on after the loss of a worker.
        quiet: Show no progress.
        options: Those of `istbench run`, such as `epochs=2`, `seed=1`, `batch_size=64` or `target=0.77`.

    Raises:
        UserError: for a wrong name or option, or bad data. RunFailed: if training fails.
    """
    backend, results = _here(restarts), Path(out)
    cell = RunRequest(
        workload=named(workload),
        method=method,
        nodes=nodes,
        method_options=dict(method_options or {}),
        workload_options=dict(workload_options or {}),
        plugins=texts(plugins),
        **checked(options, _OPTIONS),
    )
    request = backend.fit(cell)
    begin([request], backend, results)
    from istbench.api.progress import Display
    from istbench.results.load import load_run

    with Display(quiet=quiet, words=in_python) as display:
        (outcome,) = backend.run([request], results, again, display)
    return load_run(outcome.finished()).on_data(outcome.source)


@from_python
def compare(
    suite: str | Path | None = None,
    *,
    workload: "str | Path | Task" = "speech",
    methods: str | Sequence[str] = METHODS,
    nodes: int | Sequence[int] = 2,
    seeds: int = 1,
    controls: bool = False,
    out: str | Path = "results",
    again: bool = False,
    restarts: int = 1,
    quiet: bool = False,
    method_options: Mapping[str, Any] | None = None,
    workload_options: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Path] = (),
    **options: Any,
) -> "Results":
    """Train many cells on this machine, as `istbench compare` does; returns their results.

    A cell that is done is not trained again, and one that fails does not stop the others: `Results.failures` says
    why.

    Args:
        suite: A TOML file of cells, or a name of istbench's own, in place of the arguments that name cells.
        methods: Names.
        nodes: One number or several.
        seeds: As many, from 0.
        controls: Also train what `--controls` adds.
        method_options: Each method takes those that it has.
        out: The results directory.
        options: As of `run`, but for those of a single cell: `seed`, `elastic` and `save`; beside a suite,
            those of the machine: data, device, threads and the like.

    Raises:
        UserError: for a wrong name or option, or bad data. RunFailed: if no cell finishes.
    """
    files = texts(plugins)
    changes: Mapping[str, Any] = {}
    if suite is None:
        asked = suite_of(
            workload=named(workload),
            methods=texts(methods),
            nodes=(nodes,) if isinstance(nodes, int) else nodes,
            seeds=convert(seeds, Count, lambda _: "seeds"),
            method_options=method_options or {},
            workload_options=workload_options or {},
            plugins=files,
            run=checked(options, _OF_SUITES),
        )
        suites = [asked]
    else:
        given: dict[str, Any] = {"workload": workload, "methods": methods, "nodes": nodes, "seeds": seeds}
        given |= {"method_options": method_options or None, "workload_options": workload_options or None}
        usual = inspect.signature(compare).parameters
        typed = [name for name, value in given.items() if value != usual[name].default]
        check_beside_suite({name: name for name in (*typed, *options)})
        suites, changes = read_suite(Path(suite)), options
    backend, results = _here(restarts), Path(out)
    requests, lines = begin_suites(suites, changes, files, backend, results, controls=controls)
    from istbench.api.progress import Display
    from istbench.api.results import Results

    with Display(quiet=quiet, words=in_python) as display:
        for line in lines:
            display.note(line)
        outcomes = run_all(requests, backend, results, display, again=again)
    failures = tuple(map(in_python, failure_lines(outcomes)))
    if all(outcome.failure is not None for outcome in outcomes):
        raise RunFailed("\n".join(failures))
    sources = {outcome.cell: outcome.source for outcome in outcomes if outcome.run is not None}
    return Results(results, cells=sources, failures=failures)


def suite_of(
    *,
    workload: str,
    methods: Sequence[str],
    nodes: Sequence[int],
    seeds: int,
    method_options: Mapping[str, Any],
    workload_options: Mapping[str, Any],
    plugins: tuple[str, ...],
    run: Mapping[str, Any],
) -> Suite:
    """The suite of `methods` x `nodes` x `seeds`, whose methods take those of `method_options` that they have.

    Raises:
        UserError: for an option that no method has, for no cells, and for too many.
    """
    for name, named in (("methods", methods), ("nodes", nodes)):
        if not named:
            raise UserError(f"no {name}: name at least one")
    check_cells(len(nodes) * seeds * len(methods), "the command")
    return Suite(
        workload=workload,
        methods=tuple((name, own_options(name, methods, method_options, plugins)) for name in methods),
        nodes=tuple(nodes),
        seeds=tuple(range(seeds)),
        workload_options=workload_options,
        run=run,
    )


def check_beside_suite(typed: Mapping[str, str]) -> None:
    """Refuse options that name cells, beside a suite. typed: the options by name, in the words of their user.

    Raises:
        UserError: with all of them.
    """
    clashing = [word for name, word in typed.items() if name not in OF_MACHINE]
    if clashing:
        raise UserError(f"the suite names the cells: leave out {', '.join(clashing)}, or the suite")


def begin_suites(
    suites: Sequence[Suite],
    changes: Mapping[str, Any],
    plugins: tuple[str, ...],
    backend: Backend,
    out: Path,
    *,
    controls: bool,
) -> tuple[list[RunRequest], list[str]]:
    """The cells of `suites` and their controls, as `backend` runs them, and a line on each control; begins them.

    changes: fields that every cell gets. controls: add all controls, also of suites that do not say so.
    """
    by_suite = [[msgspec.structs.replace(cell, **changes) for cell in one.requests(plugins)] for one in suites]
    cells = [cell for own in by_suite for cell in own]
    requests = [backend.fit(cell) for cell in cells]
    begin(requests, backend, out)
    with_all = [own for one, own in zip(suites, by_suite, strict=True) if controls or one.controls]
    more, lines = controls_of(cells, backend, out, with_all)
    return [*requests, *more], lines


def begin(requests: Sequence[RunRequest], backend: Backend, out: Path) -> None:
    """Refuse unknown names, and let `backend` start its slow imports."""
    for request in requests:
        check_name("methods", request.method, request.plugins)
        check_name("workloads", request.workload, request.plugins)
    backend.begin(requests, out)


def run_all(
    requests: Sequence[RunRequest], backend: Backend, out: Path, display: "Display", *, again: bool
) -> list[Outcome]:
    """Run the cells of `requests`, and once more those that failed by a loss; `display` says how each ends."""
    outcomes = _one_pass(requests, backend, out, display, again=again)
    lost = [outcome for outcome in outcomes if outcome.lost and outcome.request is not None]
    if lost and backend.restarts:
        display.note(f"second pass: {len(lost)} of {len(requests)} cells failed by a loss")
        # Also after `again` they go on from what the first pass left.
        repeated = _one_pass([one.request for one in lost if one.request], backend, out, display, again=False)
        second = {id(outcome.request): outcome for outcome in repeated}
        outcomes = [second.get(id(outcome.request), outcome) for outcome in outcomes]
    return outcomes


def _one_pass(
    requests: Sequence[RunRequest], backend: Backend, out: Path, display: "Display", *, again: bool
) -> list[Outcome]:
    outcomes = list[Outcome]()
    display.place = f"cell 1 of {len(requests)}"
    for number, outcome in enumerate(backend.run(requests, out, again, display), start=1):
        display.place = f"cell {number + 1} of {len(requests)}"
        outcomes.append(outcome)
        display.note(f"[{number}/{len(requests)}] {outcome.cell}: {outcome.ended}")
    return outcomes


def controls_of(
    requests: Sequence[RunRequest], backend: Backend, out: Path, with_all: Sequence[Sequence[RunRequest]] = ()
) -> tuple[list[RunRequest], list[str]]:
    """The controls of `requests` that are not among them, as `backend` runs them; and a line on each, and on lacks.

    The controls of cells that are finished in `out` are found without an import of their methods.

    with_all: the suites that have all controls, each with its requests.
    """
    known = None if with_all else finished([backend.fit(request) for request in requests], out)
    found = on_few_nodes(requests, None if known is None else [cell.control_nodes for cell in known])
    lines, lacking = dict[str, None](), dict[str, None]()
    for own in with_all:
        more, reasons = at_equal_cost(own)
        found += one_machine(own) + more
        lacking |= dict.fromkeys(reasons)
    there, fitting = [msgspec.structs.replace(own, tuned=None) for own in requests], list[RunRequest]()
    for control in found:
        if control.request in there:
            continue
        there.append(control.request)
        try:
            fitting.append(backend.fit(control.request))
            lines[f"also runs {control.purpose}"] = None
        except UserError as error:
            lacking[f"no control: {control.purpose.removesuffix(', its control')}: {error}"] = None
    return fitting, [*lines, *lacking]


def named(workload: "str | Path | Task") -> str:
    """The name or the file of `workload`; writes the file of a `Task`."""
    return str(workload) if isinstance(workload, str | Path) else str(workload.write())


def checked(options: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """`options` of a run.

    Raises:
        UserError: for a name that is not `known`.
    """
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known, "of a run")
    return dict(options)


def _here(restarts: int) -> Here:
    return Here(restarts=convert(restarts, Restarts, lambda _: "restarts"))
