"""`istbench compare`: many cells, one after another, ending in the table and the pictures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from istbench.api.cells import begin_suites, check_beside_suite, run_all, suite_of
from istbench.base.decode import convert
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.options.defaults import BASELINE
from istbench.base.options.numbers import Nodes
from istbench.base.options.run import COMPUTING, RunRequest
from istbench.base.options.suite import MOST_CELLS, Suite, read_suite
from istbench.cli import EXIT_FAIL_IF, EXIT_FAILED, say
from istbench.cli.options import (
    PATH,
    RESULTS,
    SectionedCommand,
    Typed,
    again_option,
    all_option,
    baseline_option,
    cell_options,
    cluster_option,
    explain_option,
    methods_option,
    option,
    out_option,
    place_options,
    plugin_option,
    sink_option,
    split_list,
    take_backend,
    typed_options,
)
from istbench.cluster.profile import ClusterProfile
from istbench.launch.backends.backend import Outcome, failure_lines
from istbench.node.registry import option_names
from istbench.report.fail_if import Condition, check_all, parse_condition
from istbench.report.groups import RunGroup


@click.command("compare", cls=SectionedCommand)
@click.argument("suite", required=False, type=PATH, metavar="[SUITE.toml]")
@methods_option
@option("--workload", "Workload to train.", default="speech")
@option("--nodes", "Numbers of nodes, separated by commas.", default="2")
@option("--seeds", "Number of seeds: 0, 1, ...", click.IntRange(1, MOST_CELLS), default=1)
@cell_options()
@out_option
@plugin_option
@sink_option
@cluster_option
@baseline_option
@all_option
@explain_option
@place_options
@option(
    "--controls",
    "Also train ddp on one node, ddp and local_sgd at a subnet's width, and ddp with as few bytes as a local "
    "method, by accumulation.",
    bool,
)
@again_option
@option(
    "--fail-if",
    "Exit 4 if a row has it, such as 'time_to(0.77) > 1.2 * baseline' or 'final < 0.7'. May be repeated.",
    Typed(parse_condition, "condition"),
    name="conditions",
    multiple=True,
)
@option(
    "--baseline-results",
    "Results directory of the `baseline` in --fail-if, paired by seed.",
    RESULTS,
    metavar="DIR",
)
@option("--json", "Print one JSON object, of cells and tables, on stdout.", bool, name="as_json")
@option("--quiet", "Print the answer, the table, its data and failures, no progress.", bool)
def command(
    suite: Path | None,
    out: Path,
    plugins: tuple[str, ...],
    sinks: tuple[str, ...],
    cluster: ClusterProfile,
    baseline: str,
    all_tables: bool,
    explain: bool,
    controls: bool,
    again: bool,
    conditions: tuple[Condition, ...],
    baseline_results: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Train many cells and compare their time to accuracy.

    \b
    istbench compare --workload speech --methods ist,local_sgd,ddp --nodes 2,4 --seeds 3
    istbench compare configs/quick.toml --quiet

    Cells come from SUITE.toml, from a suite of istbench (quick, smoke, light/grid, ...), or from --methods x
    --nodes x --seeds over one workload. Beside a suite, --data, --device, --threads, --timeout, --checkpoint-every
    and --anyway apply to all of its cells.

    A method may have a control, the same method on few nodes: diloco on one node. istbench runs it too and says so.
    --controls, or `controls = true` in a suite, adds others for the methods of the comparison.

    istbench does not run a finished cell again. It resumes an unfinished one. A cell that fails does not stop the
    others. One that lost a worker or a host, and used up its --restarts, runs once more at the end, unless its last
    losses were at the same step; a cell of --slurm does not. Under torchrun, each of its processes is a node, and
    cells of fewer nodes use the first.

    --fail-if is for CI: a row fails if the whole interval over its seeds is beyond the bound (see docs/ci.md).
    """
    backend = take_backend(given)
    before = _baseline_groups(conditions, baseline_results, cluster)
    suites, typed = _suites(suite, plugins, given)
    changes = {"sinks": sinks, **typed}
    requests, lines = begin_suites(suites, changes, plugins, backend, out, controls=controls)
    for line in lines if backend.shows_results and not quiet else ():
        say(line)
    _check_baseline(baseline, requests)
    from istbench.api.progress import Display
    from istbench.api.replaying import replaying

    with Display(quiet=quiet) as display:
        outcomes = run_all(requests, backend, out, display, again=again)
    sources = {outcome.cell: outcome.source for outcome in outcomes if outcome.run is not None}
    cells, running = list(map(_as_json, outcomes)), any(outcome.running for outcome in outcomes)
    failures = failure_lines(outcomes)
    try:
        if running or not backend.shows_results or not sources:
            if as_json and backend.shows_results:
                click.echo(json.dumps({"cells": cells}, allow_nan=False))
            if conditions and running:
                say("--fail-if checks nothing while cells run; the same command does, once they are done")
            return EXIT_FAILED if failures else 0
        from istbench.api.show import page_beside, show_report
        from istbench.report.page import PAGE_BANDWIDTHS
        from istbench.report.report import build_report

        with replaying(quiet=quiet) as tell:
            report = build_report(
                out,
                cells=sources,
                cluster=cluster,
                bandwidths=PAGE_BANDWIDTHS,
                baseline=baseline,
                sources=sources,
                tell=tell,
            )
        unmatched: UserError | None = None
        try:
            checked, lacking = check_all(conditions, report.groups, before)
        except UserError as error:  # the table is still shown
            checked, lacking, unmatched = [], [], error
        show_report(
            report,
            out,
            output_format="json" if as_json else "table",
            page=page_beside(out),
            explain=explain,
            all_tables=all_tables,
            quiet=quiet,
            fields={"cells": cells, **({"fail_if": [one.record() for one in checked]} if conditions else {})},
        )
        if unmatched is not None:
            raise unmatched
        for line in lacking:
            say(f"--fail-if: {line}")
        held = [one for one in checked if one.verdict == "held"]
        for one in checked:
            if one.verdict != "no":
                say(f"{'failed by' if one in held else 'not failed by'} --fail-if: {one.sentence}")
    finally:
        for failure in failures:
            say(failure)
    return EXIT_FAILED if failures else EXIT_FAIL_IF if held else 0


def _baseline_groups(
    conditions: Sequence[Condition], results: Path | None, cluster: ClusterProfile
) -> tuple[RunGroup, ...]:
    """The groups of the baseline in `results`, before anything trains.

    Raises:
        UserError: if `conditions` need one that is not there or has no finished run, or do not need the one there.
    """
    needed = any(condition.of_baseline for condition in conditions)
    if results is None:
        if needed:
            raise UserError("--fail-if has a baseline: --baseline-results names the directory of its results")
        return ()
    if not needed:
        raise UserError("--baseline-results is for the baseline of --fail-if; add one, or leave it out")
    from istbench.report.report import build_report

    report = build_report(results, cluster=cluster)
    if not any(group.contenders for group in report.groups):
        raise UserError("; ".join([f"--baseline-results {results} has no finished run", *report.problems[:1]]))
    for problem in report.problems:
        say(f"--baseline-results: {problem}")
    clocks = {group.clock for group in report.groups if group.contenders}
    for condition in conditions:
        if condition.of_baseline and condition.clock not in clocks:
            where = f"--fail-if {shown(condition.text)}: no run in --baseline-results {results} replays"
            raise UserError("; ".join([where, *report.problems[:1]]))
    return report.groups


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "cell": outcome.cell,
        "ended": outcome.ended,
        "failure": None if outcome.failure is None else str(outcome.failure),
        "directory": None if outcome.run is None else str(outcome.run.path),
    }


def _suites(
    suite: Path | None, plugins: tuple[str, ...], given: dict[str, Any]
) -> tuple[list[Suite], dict[str, Any]]:
    """The requested suites, and the options that replace those of their cells.

    Without a file it is one suite, whose methods take those of the given options that they have.
    """
    if suite is not None:
        flags = typed_options()
        typed = {name: given[name] for name in given if name in flags}
        check_beside_suite({name: flags[name] for name in typed})
        return read_suite(suite), typed
    listed = split_list(given.pop("nodes"), "--nodes", "such as 2,4,8")
    nodes = tuple(convert(listed, list[Nodes], lambda _: "--nodes", text=True))
    requested = suite_of(
        workload=given.pop("workload"),
        methods=given.pop("methods"),
        nodes=nodes,
        seeds=given.pop("seeds"),
        method_options=given.pop("method_options"),
        workload_options=given.pop("workload_options"),
        plugins=plugins,
        run=given,
    )
    return [requested], {}


def _check_baseline(baseline: str, requests: list[RunRequest]) -> None:
    """Refuse, before training, a `baseline` that matches no cell of `requests`."""
    if baseline == BASELINE:
        return
    from istbench.report.baseline import same_value
    from istbench.report.groups import split_label

    method, options = split_label(baseline)
    cells = [request for request in requests if request.method == method]
    if not cells:
        raise unknown_name("--baseline", baseline, {request.method for request in requests})
    for name, text in options.items():
        # The rows of a table tell these apart, and a control has options of the workload.
        known = option_names(method, cells[0].plugins) | {*COMPUTING}.union(
            *(cell.workload_options for cell in cells)
        )
        if name not in known:
            raise unknown_name("option", name, known, f"of {method} in --baseline")
        # If the request sets no value, the workload sets the default, which is not known yet.
        cells = [cell for cell in cells if same_value(_given(cell, name, text), text)]
        if not cells:
            raise UserError(
                f"--baseline {shown(baseline)}: no cell of {method} has {name}={text}; "
                f"train one with it, or name {method} alone"
            )


def _given(request: RunRequest, name: str, otherwise: str) -> Any:
    options = {**request.workload_options, **request.method_options}
    found = options.get(name, getattr(request, name, otherwise))
    return otherwise if found is None else found
