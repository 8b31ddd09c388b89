"""`istbench export`: finished runs for other tools."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istbench.base.errors import UserError, printable, shown, unknown_name
from istbench.cli.options import PATH, option
from istbench.node.registry import load_sink, names_of
from istbench.node.sinks.base import default_place
from istbench.results.frame import FORMATS

if TYPE_CHECKING:
    from istbench.results.load import Run

_CHAKRA = "chakra"


@click.command("export")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@option(
    "--format",
    "One file with a row for each evaluation; a sink, as with `run --sink` (see `istbench list sinks`); or "
    "chakra: the trace as MLCommons Chakra execution traces, a file for each rank.",
    name="name",
    required=True,
    metavar="jsonl|parquet|SINK|chakra",
)
@option(
    "--out",
    "Directory to write to; for mlflow also the address of a server, for jsonl and parquet a file. Default: "
    "the name of the format, or evaluations.FORMAT, in the results directory.",
    metavar="WHERE",
)
def command(runs: tuple[Path, ...], name: str, out: str | None) -> None:
    """Write finished runs in the format of another tool.

    RUN is the directory of a run, or a results directory for all finished runs in it. Format chakra leaves out runs
    without a trace.
    """
    known = names_of("sinks")
    if name not in (*known, _CHAKRA, *FORMATS):
        raise unknown_name("format", name, {*known, _CHAKRA, *FORMATS})
    found = [run for path in runs for run in _finished(path)]
    places: dict[tuple[Path, str], Path] = {}
    for run in found:
        place = Path() if out or name in FORMATS else _results_of(run)
        other = places.setdefault((place, run.header.cell), run.directory.path)
        if other is not run.directory.path:
            raise UserError(
                f"{printable(str(other))} and {printable(str(run.directory.path))} are the same cell: one export "
                "would replace the other; export each to another --out"
            )
    if name in FORMATS:
        _rows(found, name, out)
        return
    export = _chakra if name == _CHAKRA else _to_sink(name)
    untraced: list[_UntracedError] = []
    for run in found:
        where = out or str(default_place(_results_of(run), name, "choose another --out"))
        try:
            export(run, where)
        except _UntracedError as error:
            untraced.append(error)
        else:
            click.echo(printable(f"{run.header.cell}: {where}"))
    if len(untraced) == len(found):
        raise untraced[0]
    for why in untraced:
        click.echo(printable(f"left out: {why}"), err=True)


def _rows(runs: "list[Run]", ending: str, out: str | None) -> None:
    """Write all evaluations of `runs` to one file."""
    from istbench.results.frame import frame_of, write_rows

    file = Path(out) if out else _results_of(runs[0]) / f"evaluations.{ending}"
    if file.suffix != f".{ending}":
        raise UserError(f"--out {shown(str(file))}: the name of a file of {ending} ends in .{ending}")
    frame = frame_of(runs)
    write_rows(frame, file)
    click.echo(printable(f"{len(frame):,} evaluations of {len(runs)} runs: {file}"))


def _results_of(run: "Run") -> Path:
    """The results directory of `run`, as its path says: a link in the place of a run may lead to other results."""
    return Path(os.path.abspath(run.directory.path)).parent.parent  # noqa: PTH100  (resolving follows links)


class _UntracedError(UserError):
    """A run has no trace that can be read."""


def _finished(path: Path) -> "list[Run]":
    """The finished runs in `path`, each in a directory with the name of its cell, which its files get."""
    from istbench.results.load import load_run, load_runs
    from istbench.results.store import RunDirectory

    if RunDirectory(path).exists():
        RunDirectory(path).own_header()
        run = load_run(RunDirectory(path))
        if not run.done:
            raise UserError(f"{path} is {run.header.status}, not done; run the same command again to finish it")
        return [run]
    runs, problems = load_runs(path)
    done = []
    for run in runs:
        try:
            run.directory.own_header()
        except UserError as error:
            problems.append(str(error))
        else:
            done += [run] if run.done else []
    for problem in problems:
        click.echo(printable(f"left out: {problem}"), err=True)
    if not done:
        raise UserError(f"no finished run in {path}; `istbench run ... --out {path}` makes one")
    return done


def _to_sink(name: str) -> "Callable[[Run, str], None]":
    kind = load_sink(name)

    def export(run: "Run", where: str) -> None:
        try:
            sink = kind(run.header, where, None)
            for evaluation in run.curve.evaluations:
                sink.evaluation(evaluation)
            sink.close(run.header.status)
        except Exception as error:  # of the other package
            raise UserError(
                f"cannot export {run.header.cell} to {where}: {type(error).__name__}: {error}; choose another --out"
            ) from error

    return export


def _chakra(run: "Run", where: str) -> None:
    from istbench.cluster.chakra import write_chakra
    from istbench.cluster.trace_file import load_trace

    try:
        trace = load_trace(run.directory.trace)
    except UserError as error:
        raise _UntracedError(f"{run.header.cell}: {error}") from None
    header = run.header
    about = {
        "source": "istbench",
        "cell": header.cell,
        "method": header.method_label,
        "workload": header.workload_label,
    }
    write_chakra(trace, about, Path(where), header.cell)
