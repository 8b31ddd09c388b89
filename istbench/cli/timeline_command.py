"""`istbench timeline`: one round of a run, to look at."""

import json
import sys
from pathlib import Path

import click

from istbench.cluster.profile import parse_bandwidth
from istbench.cluster.selection import select_clusters
from istbench.errors import UserError


@click.command("timeline")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--round", "number", type=int, help="Which of the recorded rounds, from 1. Default: 2, if there is.")
@click.option("--cluster", help="As replayed on this cluster, a name or FILE.toml. Default: as recorded.")
@click.option("--bandwidth", help="Of the cluster's links, such as 1gbit. Default: its own.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write. Default: RUN/timeline.")
def command(run: Path, number: int | None, cluster: str | None, bandwidth: str | None, out: Path | None) -> None:
    """One round of RUN, a directory under results/runs, as a picture and for ui.perfetto.dev."""
    from istbench.cluster.trace_file import load_trace
    from istbench.report.draw_timeline import draw_timeline
    from istbench.report.perfetto import trace_events
    from istbench.report.render import print_table
    from istbench.report.timeline import recorded, replayed
    from istbench.report.timeline_table import timeline_table
    from istbench.results.load import load_run
    from istbench.results.store import RunDirectory

    if bandwidth and not cluster:
        raise UserError("--bandwidth is of a cluster's links; give --cluster too")
    header = load_run(RunDirectory(run)).header
    trace = load_trace(RunDirectory(run).trace)
    # What came before the first recorded event is not known, so the second round is the better picture.
    number = min(2, trace.rounds) if number is None else number
    if cluster:
        links = [parse_bandwidth(bandwidth)] if bandwidth else []
        timeline = replayed(trace, next(iter(select_clusters([cluster], links).values()))[0], number)
    else:
        timeline = recorded(trace, number)
    how = f"replayed on {timeline.origin}" if cluster else "as recorded"
    title = f"{header['workload_label']} by {header['method_label']}, round {number}, {how}"
    stem = (out or run / "timeline") / f"{timeline.origin.replace(' ', '-').replace('/', '-')}-round{number}"
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        events = stem.with_name(f"{stem.name}.json")
        events.write_text(json.dumps(trace_events(timeline, title)) + "\n")
        pictures = draw_timeline(timeline, title, stem)
    except OSError as error:
        raise UserError(f"cannot write {stem.parent}: {error.strerror}; choose another --out") from None
    print_table(timeline_table(timeline, title), sys.stdout)
    for path in (events, *pictures):
        click.echo(f"written: {path}", err=True)
