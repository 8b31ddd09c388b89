"""`istbench run`: one cell."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from istbench.api.cells import begin
from istbench.base.decode import encode_own
from istbench.base.errors import printable
from istbench.base.options.run import LABELLED, RunRequest
from istbench.cli import EXIT_TARGET_MISSED, say
from istbench.cli.options import (
    SectionedCommand,
    cell_options,
    cluster_option,
    explain_option,
    json_option,
    option,
    out_option,
    place_options,
    plugin_option,
    run_options,
    sink_option,
    take_backend,
)
from istbench.cluster.clock import dollars
from istbench.cluster.profile import ClusterProfile
from istbench.launch.backends.backend import Outcome
from istbench.results.events import Note
from istbench.results.load import Run
from istbench.results.metrics import level_text, value_text
from istbench.results.store import RunDirectory


@click.command("run", cls=SectionedCommand)
@option("--method", "Training method; see `istbench list methods`.", required=True)
@option("--workload", "Workload to train; see `istbench list workloads`.", required=True)
@run_options("nodes", "elastic", "seed", "save")
@cell_options()
@out_option
@plugin_option
@sink_option
@cluster_option
@explain_option
@place_options
@option("--again", "Delete the results of the cell and run it again.", bool)
@json_option
def command(out: Path, cluster: ClusterProfile, explain: bool, again: bool, as_json: bool, **given: Any) -> int:
    """Train one cell: a workload, a method and a number of nodes.

    \b
    istbench run --workload speech --method ist --nodes 2 --epochs 2
    istbench run --workload speech --method local_sgd --set local_steps=40 --nodes 4 --target 0.77 --json

    The same command again resumes an interrupted run, and shows the results of a finished one. Under torchrun, each
    of its processes is a node.
    """
    backend = take_backend(given, restarts=0)
    request = backend.fit(RunRequest(**given))
    begin([request], backend, out)
    from istbench.api.progress import Display

    with Display() as display:
        (outcome,) = backend.run([request], out, again, display)
        if outcome.running:
            return 0
        run = outcome.finished()
        if not outcome.fresh:
            display.note(f"{outcome.cell} is done already; --again runs it from the start")
        for note in _notes(run):
            display.note(note)
    return _show(outcome, request, cluster, as_json, explain) if backend.shows_results else 0


def _notes(run: RunDirectory) -> list[str]:
    """Notes on a finished run, for the lines above its summary."""
    from istbench.results.run_parts import changes

    method, events = run.header().method, list(run.events())
    notes = dict.fromkeys(event.message for event in events if isinstance(event, Note) and not event.urgent)
    parts = changes(events)
    return [f"{method}: {note}" for note in notes] + [
        f"the seconds come from several parts of the run, {change}" for change in parts
    ]


def _show(outcome: Outcome, request: RunRequest, cluster: ClusterProfile, as_json: bool, explain: bool) -> int:
    from istbench.api.replaying import replaying
    from istbench.report.tables.summary import run_sentence, run_summary
    from istbench.results.load import load_run

    finished = load_run(outcome.finished()).on_data(outcome.source)
    with replaying():
        replayed, problem = _replay(finished, cluster)
    if as_json:
        click.echo(json.dumps(_as_json(finished, cluster, replayed), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_tables

        answers = [run_sentence(finished, replayed)]
        print_tables([run_summary(finished, replayed)], sys.stdout, answers=answers, explain=explain)
    if problem:
        click.echo(printable(f"no {cluster.name} seconds: {problem}"), err=True)
    if request.target is None or finished.reached(request.target):
        return 0
    value = finished.curve.best()
    best = "never a number" if value is None else value_text(value, 4)
    say(f"target {level_text(request.target)} not reached: best {finished.curve.metric.name} {best}")
    return EXIT_TARGET_MISSED


def _replay(run: Run, cluster: ClusterProfile) -> tuple[Run | None, str]:
    from istbench.results.on_cluster import runs_on_clusters

    (replayed,), problems = runs_on_clusters([run], [cluster])
    return (None, problems[0]) if problems else (replayed[0], "")


def _range(replayed: Run | None, seconds: float | None) -> dict[str, float | None]:
    """The range of replayed `seconds`; null where it is unknown."""
    time = replayed.cluster if replayed else None
    if time is None or seconds is None or time.low is None or time.high is None:
        return {"low": None, "high": None}
    return {"low": seconds * time.low, "high": seconds * time.high}


def _as_json(run: Run, cluster: ClusterProfile, replayed: Run | None) -> dict[str, Any]:
    """The object that `--json` prints: the cell and its results, with null for a target it never reached."""
    header, targets = run.header, []
    config = msgspec.to_builtins(header.config, enc_hook=encode_own)
    for level in run.targets:
        there, there_on_cluster = run.reached(level), replayed.reached(level) if replayed else None
        targets.append(
            {
                "level": level,
                "step": there.step if there else None,
                "train_s": there.seconds if there else None,
                "before_first_evaluation": there.from_start if there else None,
                "cluster_s": there_on_cluster.seconds if there_on_cluster else None,
            }
        )
    seconds = replayed.curve.seconds[-1] if replayed else None
    said = ("cell", "status", "method", "workload", "nodes", "seed", "batch_size", "data", "timing_rule")
    return {
        **{name: getattr(header, name) for name in said},
        "run_dir": str(run.directory.path),
        "saved": header.config.save,
        "method_options": header.config.method_options,
        "workload_options": header.config.workload_options,
        **{name: value for name, value in config.items() if name in LABELLED},
        "data_seen": header.data_source.seen,
        "data_fingerprint": header.data_source.fingerprint,
        "metric": run.curve.metric.name,
        "lower_is_better": run.curve.metric.lower_is_better,
        "metric_unit": run.curve.metric.unit or None,
        "clock": "train_s",
        "cluster": {
            "name": cluster.name,
            "seconds": seconds,
            "dollars": dollars(cluster, header.nodes, seconds) if seconds is not None else None,
            **_range(replayed, seconds),
            "doubt": replayed.cluster.doubt or None if replayed and replayed.cluster else None,
        },
        "targets": targets,
        **msgspec.to_builtins(header.result),
        "stalled_s": run.stalled_s,
        "stalls": msgspec.to_builtins(run.stalls),
        "restarts": msgspec.to_builtins(run.restarts),
        "resizes": msgspec.to_builtins(run.resizes),
    }
