"""`istbench reproduce`: the tables of a paper again, ours beside the published ones."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.base.decode import utf8_path
from istbench.base.errors import UserError, shown
from istbench.base.files import is_there
from istbench.base.options.run import OF_MACHINE, RunRequest
from istbench.base.options.suite import MOST_CELLS
from istbench.cli import EXIT_FAILED, say
from istbench.cli.options import (
    PATH,
    again_option,
    explain_option,
    json_option,
    node_counts,
    option,
    place_options,
    refuse_typed,
    run_options,
    split_list,
    take_backend,
    typed_options,
)
from istbench.launch.backends.backend import Backend, Outcome, failure_lines
from istbench.studies.reproduce import NAMES

if TYPE_CHECKING:
    from istbench.report.tables.table import Table
    from istbench.studies.reproduce.cells import Overrides
    from istbench.studies.reproduce.hours import Forecast
    from istbench.studies.reproduce.paper import Experiment, Scale

_OUTSIDE = "outside"
"""Other people's measurements, which are predicted; nothing is trained."""


@click.command("reproduce")
@click.argument("paper", type=click.Choice((*NAMES, _OUTSIDE)))
@option(
    "--scale",
    "laptop: hours on two cores, without downloads. paper: the paper's sizes, on your machines.",
    click.Choice(["laptop", "paper"]),
    default="laptop",
)
@option("--only", "Only these tables; --list names them.", metavar="TABLE,...")
@option("--list", "List tables, cells and hours, and run nothing.", bool, name="as_list")
@option("--report", "Run nothing: print the tables of the cells so far.", bool, name="only_report")
@option(
    "--nodes", "Nodes, in place of the paper's. Default: those of --hosts or of the paper.", default="", metavar="N"
)
@option("--seeds", "Number of seeds. Default: those of the scale.", click.IntRange(1, MOST_CELLS))
@option(
    "--data",
    "Directory of the real data of a workload. May be repeated. Default: prepared data, else synthetic data.",
    name="data",
    multiple=True,
    metavar="[WORKLOAD=]DIR",
)
@run_options(*(name for name in OF_MACHINE if name != "data"))
@option("--out", "Results directory. Default: results/reproduce-PAPER-SCALE.", PATH, metavar="DIR")
@place_options
@explain_option
@again_option
@json_option
def command(
    paper: str,
    scale: "Scale",
    only: str | None,
    as_list: bool,
    only_report: bool,
    seeds: int | None,
    data: tuple[str, ...],
    out: Path | None,
    explain: bool,
    again: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Train the cells behind a paper's tables, and print ours beside the published figures.

    Each table has the published figure, ours, their ratio, the number of seeds that reached the level, the range
    over seeds, and what differs: data, width, machine, clock.

    istbench does not run a finished cell again. It resumes an unfinished one. After Ctrl-C, --report prints the
    tables of the cells so far.

    `outside` trains nothing: it predicts the steps that other projects measured, from their numbers.
    """
    if paper == _OUTSIDE:
        kept = ("paper", "out", "explain", "as_json")
        others = [name for name in typed_options() if name not in kept]
        refuse_typed(others, "is for a paper: `outside` trains nothing")
        return _show_outside(out or Path("results") / f"reproduce-{_OUTSIDE}", explain=explain, as_json=as_json)
    from istbench.studies.reproduce.cells import requests_of, select, with_data
    from istbench.studies.reproduce.papers import PAPERS

    if as_list or only_report:
        shown = "--list" if as_list else "--report"
        refuse_typed(["restarts"], f"is for cells that run, and {shown} runs none")
        if again:
            raise UserError(f"--again runs cells, and {shown} runs none; leave one out")
    backend = take_backend(given)
    chosen = PAPERS[paper]
    names = split_list(only, "--only", "--list names the tables") if only is not None else []
    selected = select(chosen, names, scale)
    directories = _directories(data, selected, scale)
    out = out or Path("results") / f"reproduce-{paper}-{scale}"
    overrides = _overrides(given, seeds, directories)
    if as_list:
        from istbench.report.output.formats import table_json
        from istbench.studies.reproduce.reproduction import runs_in
        from istbench.studies.reproduce.tables import list_table, listed

        runs, _ = runs_in(out)
        rows = listed(selected, scale, overrides, runs, directories)
        table = list_table(f"{chosen.title}, at {scale} scale", rows)
        record = {"paper": paper, "scale": scale, **table_json(table)}
        _print([table], record if as_json else None, explain=explain)
        return 0
    experiments, lines = with_data(selected, scale, directories, named=bool(names))
    requests = list[RunRequest]()
    if not only_report:
        extents = (experiment.at[scale] for experiment in experiments)
        requests = [backend.fit(request) for request in requests_of(extents, overrides)]
        backend.begin(requests, out)
    for line in lines:
        say(line)
    cells, failures = list[str](), list[str]()
    if not only_report:
        hours = _forecast(experiments, scale, overrides, out, again=again)
        cells, failures, running = _train(requests, hours, backend, out, again=again)
        if running or not backend.shows_results:
            return EXIT_FAILED if failures else 0
    from istbench.api.replaying import replaying
    from istbench.api.show import report_folder
    from istbench.studies.reproduce.reproduction import reproduction, write_files

    with replaying():
        found = reproduction(experiments, scale, overrides, out, cells)
    written, unwritten = list[Path](), None
    try:
        written = write_files(chosen, scale, names, found, report_folder(out))
    except UserError as error:  # on a full disk, the tables are still printed
        unwritten = error
    record = {
        "paper": paper,
        "scale": scale,
        "tables": found.tables,
        "problems": list(found.problems),
        "failures": failures,
        "files": [str(path) for path in written],
    }
    _print(found.tables, record if as_json else None, explain=explain)
    for line in (*(f"left out: {problem}" for problem in found.problems), *failures):
        say(line)
    if unwritten is not None:
        raise unwritten
    say(f"wrote {', '.join(str(path) for path in written)}")
    return EXIT_FAILED if failures or found.unreadable else 0


def _show_outside(out: Path, *, explain: bool, as_json: bool) -> int:
    """Print other people's measurements beside their predictions, and write them to the directory `out`."""
    from istbench.api.replaying import replaying
    from istbench.studies.reproduce.outside import class_table, outside_rows, rows_tables, write_outside

    with replaying():
        found = outside_rows()
        tables = [class_table(found), *rows_tables(found)]
    _print(tables, {"tables": tables} if as_json else None, explain=explain)
    say(f"wrote {', '.join(str(path) for path in write_outside(found, out))}")
    return 0


def _overrides(given: dict[str, Any], seeds: int | None, data: dict[str, Path]) -> "Overrides":
    from istbench.studies.reproduce.cells import Overrides

    counts = node_counts(given["nodes"]) if given["nodes"] else []
    if len(counts) > 1:
        raise UserError(f"--nodes {given['nodes']}: a reproduction has one number of nodes; name one")
    typed = typed_options()
    run = {name: given[name] for name in OF_MACHINE if name != "data" and name in typed}
    return Overrides(nodes=counts[0] if counts else None, seeds=seeds, data=data, run=run)


def _directories(texts: tuple[str, ...], experiments: "tuple[Experiment, ...]", scale: "Scale") -> dict[str, Path]:
    """The directories of `--data`, by workload. One without a workload belongs to the only workload there is."""
    workloads = list(dict.fromkeys(name for one in experiments for name in one.at[scale].workloads))
    found: dict[str, Path] = {}
    for text in texts:
        name, separator, directory = text.partition("=")
        if not separator or name not in workloads:
            if len(workloads) != 1 or (separator and not is_there(Path(text))):
                raise UserError(
                    f"--data {shown(text)}: name its workload, one of {', '.join(workloads) or 'none'}: "
                    f"--data {workloads[0] if workloads else 'WORKLOAD'}=DIR"
                )
            name, directory = workloads[0], text
        if name in found:
            raise UserError(f"--data names {name} twice; leave one out")
        found[name] = utf8_path(directory, "--data")
    return found


def _forecast(
    experiments: "tuple[Experiment, ...]", scale: "Scale", overrides: "Overrides", out: Path, *, again: bool
) -> "list[Forecast]":
    """The hours of the cells that this command will run, each once; says their sum."""
    from istbench.report.tables.numbers import number
    from istbench.studies.reproduce.hours import forecasts
    from istbench.studies.reproduce.reproduction import runs_in

    runs, _ = runs_in(out)
    found = forecasts((experiment.at[scale] for experiment in experiments), overrides, runs)
    left = [one for one in found if again or not one.done]
    known = [one.hours for one in left if one.hours is not None]
    length = f"about {number(sum(known))} hours on two idle cores" if len(known) == len(left) else "hours unknown"
    if left:
        say(
            f"{len(left)} of {len(found)} cells to run in {out}, {length}. After an "
            "interruption, the same command resumes, and --report prints the tables so far"
        )
    return left


def _train(
    requests: list[RunRequest], hours: "list[Forecast]", backend: Backend, out: Path, *, again: bool
) -> tuple[list[str], list[str], bool]:
    """Run the cells; returns their names, a line for each failure, and whether some go on after this command."""
    from istbench.api.progress import Display
    from istbench.studies.reproduce.hours import HoursLeft

    if not requests:
        return [], [], False
    outcomes, reasons, running = list[Outcome](), set[str](), False
    pace = HoursLeft(hours)
    with Display() as display:
        try:
            for number, outcome in enumerate(backend.run(requests, out, again, display), start=1):
                outcomes.append(outcome)
                running = running or outcome.running
                left = pace.after(outcome)
                reason = "" if outcome.failure is None else f": {outcome.failure}"
                why = "" if reason in reasons else reason
                reasons.add(reason)
                display.note(f"[{number}/{len(requests)}] {outcome.cell}: {outcome.ended}{left}{why}")
        except KeyboardInterrupt:
            display.note(f"{len(outcomes)} of {len(requests)} cells ended; --report prints their tables")
            raise
    return [outcome.cell for outcome in outcomes], failure_lines(outcomes), running


def _print(tables: "Iterable[Table]", record: dict[str, Any] | None, *, explain: bool) -> None:
    """Print `record`, which may have tables, as one JSON object; without one, the `tables`."""
    from istbench.report.output.formats import table_json
    from istbench.report.output.terminal import print_table

    if record is not None:
        click.echo(json.dumps(record, indent=1, allow_nan=False, default=table_json))
        return
    for table in tables:
        print_table(table, sys.stdout, explain=explain)
