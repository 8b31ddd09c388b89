"""`istbench retrace`: the traces of finished runs, recorded again on a machine that is idle now."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.api.replaying import named_code
from istbench.base.errors import RunFailed, UserError, printable, shown
from istbench.base.files import write_errors
from istbench.cli import EXIT_FAILED
from istbench.cli.options import RESULTS, json_option, option, plugin_option, run_options

if TYPE_CHECKING:
    from istbench.cluster.trace import Trace


@click.command("retrace")
@click.argument("results", default="results", type=RESULTS)
@option("--all", "All runs. Default: those whose trace was recorded on a busy machine.", bool, name="every")
@option("--workload", "Only this workload, or that of a task file.", metavar="NAME|FILE.py")
@run_options("data")
@plugin_option
@json_option
def command(
    results: Path, every: bool, workload: str | None, data: Path | None, plugins: tuple[str, ...], as_json: bool
) -> int:
    """Record the traces of finished runs again, on this machine. Trains a few rounds of each.

    A replay takes its seconds from the trace of a run. Other programs on the machine change these seconds. So train
    when you like, and record the traces when the machine is idle. The learning curves and the train seconds stay.

    No path in RESULTS is imported or opened. A run by a plug-in or a task file needs that file too, and a run with
    --data its data: --plugin FILE.py, --data DIR.
    """
    from istbench.results.load import load_runs

    workload, plugins = named_code(workload, plugins)
    runs, problems = load_runs(results)
    if workload is not None:
        runs = [run for run in runs if run.header.workload == workload]
        if not runs:
            raise UserError(f"no run of workload {shown(workload)} in {results}; `istbench report` lists them")
    for problem in problems:
        click.echo(printable(problem), err=True)
    from istbench.api.progress import Display
    from istbench.cluster.trace_file import load_trace
    from istbench.launch.cells.execute import execute
    from istbench.launch.cells.retrace import replace_trace, resolved, shortened, why_not
    from istbench.launch.processes.local import LocalLauncher, preload
    from istbench.results.store import RunDirectory

    preload()
    launcher = LocalLauncher()
    done: list[dict[str, Any]] = []
    failures: list[str] = []
    with Display() as display:
        for run in runs:
            name = run.header.cell
            reason = why_not(run.directory)
            if reason:
                display.note(f"{name}: {reason}")
                continue
            beside = None
            try:
                before = load_trace(run.directory.trace)
                if not every and not before.meta.doubt:
                    continue
                with write_errors(results, "make it writable"):
                    beside = Path(tempfile.mkdtemp(prefix="retrace-", dir=results))
                cell = shortened(resolved(run.directory, plugins, data, display.preparing), before, run.shares)
                short = RunDirectory(beside / cell.cell)
                with display.training(cell, short) as scratch:
                    execute(cell, short, scratch, launcher)
                traces = replace_trace(run.directory, short)
            except (UserError, RunFailed) as error:
                failures.append(f"{name}: {error}")
                display.note(failures[-1])
            else:
                done.append(_as_json(name, *traces))
                display.note(_line(done[-1]))
            finally:
                if beside is not None:
                    shutil.rmtree(beside, ignore_errors=True)
    if as_json:
        click.echo(json.dumps({"recorded": done, "failed": failures}))
    else:
        click.echo(f"{len(done)} of {len(runs)} traces recorded again" + ("" if every else "; --all records all"))
    return EXIT_FAILED if failures else 0


def _as_json(cell: str, before: "Trace", after: "Trace") -> dict[str, Any]:
    return {
        "cell": cell,
        "step_s": after.computing_s / after.steps,
        "step_s_before": before.computing_s / before.steps,
        "doubt": after.meta.doubt,
        "doubt_before": before.meta.doubt,
    }


def _line(found: dict[str, Any]) -> str:
    now, before = 1e3 * found["step_s"], 1e3 * found["step_s_before"]
    doubt = f"; {found['doubt']}" if found["doubt"] else ""
    return f"{found['cell']}: a step computes {now:.3g} ms, recorded before as {before:.3g} ms{doubt}"
