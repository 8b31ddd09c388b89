"""`istbench timeline`: one round of a run, for a trace viewer and as a picture."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istbench.base.errors import UserError, printable
from istbench.base.files import require_no_link
from istbench.base.units import parse_bandwidth
from istbench.cli.options import PATH, option
from istbench.cluster.profile import load_profile, names

if TYPE_CHECKING:
    from istbench.cluster.profile import ClusterProfile
    from istbench.results.store import RunDirectory


@click.command("timeline")
@click.argument("run", type=PATH)
@option("--cluster", "Replay the round on this cluster. Default: show it as recorded.", metavar="NAME|FILE.toml")
@option("--bandwidth", "Bandwidth of a host's link, such as 100mbit. Default: that of the cluster.")
@option(
    "--round",
    "Recorded round, from 1. Default: a typical one.",
    click.IntRange(1, 10**9),
    name="round_number",
    metavar="K",
)
@option("--out", "Directory to write to. Default: RUN/timeline.", PATH, metavar="DIR")
def command(
    run: Path, cluster: str | None, bandwidth: str | None, round_number: int | None, out: Path | None
) -> None:
    """Show when each node computed, sent and waited in one round of RUN, a directory under results/runs.

    Writes the round for ui.perfetto.dev (JSON) and as a picture (PNG, SVG), and prints the seconds of each node by
    activity. The round is as recorded, or replayed on a cluster.
    """
    profile = _profile(cluster, bandwidth)
    from istbench.cluster.trace_file import load_trace
    from istbench.report.output.terminal import print_table
    from istbench.report.output.timeline_picture import draw_timeline
    from istbench.report.phrases import count_nodes
    from istbench.report.timeline.perfetto import write_perfetto
    from istbench.report.timeline.recorded import recorded_round
    from istbench.report.timeline.simulated import simulated_round
    from istbench.report.timeline.timeline import timeline_table, typical_round
    from istbench.results.load import load_run
    from istbench.results.store import RunDirectory

    directory = RunDirectory(run)
    _check_there(directory)
    directory.own_header()
    header = load_run(directory).header
    trace = load_trace(directory.trace)
    number = typical_round(trace) if round_number is None else round_number
    timeline = recorded_round(trace, number) if profile is None else simulated_round(trace, profile, number)
    title = f"{header.workload_label} by {header.method_label}, {count_nodes(timeline.nodes)}"
    seen = header.data_source.seen
    stem = (out or _beside(run)) / f"{_place(profile, bandwidth)}-round{number}"
    try:
        perfetto = stem.with_name(f"{stem.name}.json")
        write_perfetto(timeline, title, perfetto)
        picture, _ = draw_timeline(timeline, f"{title}, {seen}", stem)
    except OSError as error:
        raise UserError(f"cannot write to {stem.parent}: {error.strerror or error}; choose another --out") from None
    print_table(timeline_table(timeline, title, (f"Trained on {seen}.",)), sys.stdout)
    click.echo(printable(f"picture: {picture} (and .svg)"), err=True)
    click.echo(printable(f"trace: {perfetto} (for ui.perfetto.dev)"), err=True)


def _beside(run: Path) -> Path:
    """The default place of the files, which no link of a results folder may lead elsewhere."""
    here = Path(os.path.abspath(run))  # noqa: PTH100  (resolving would follow links)
    for path in (here.parent, here, here / "timeline"):
        require_no_link(path, "name another place with --out")
    return run / "timeline"


def _profile(cluster: str | None, bandwidth: str | None) -> "ClusterProfile | None":
    if cluster is None:
        if bandwidth is not None:
            raise UserError(f"--bandwidth needs a cluster: name one with --cluster ({', '.join(names())})")
        return None
    profile = load_profile(cluster)
    return profile if bandwidth is None else profile.with_bandwidth(parse_bandwidth(bandwidth, "--bandwidth"))


def _check_there(directory: "RunDirectory") -> None:
    path = directory.path
    if not directory.exists():
        if (path / "runs").is_dir():
            raise UserError(f"{path} is a directory of results; give one of the runs in {path / 'runs'}")
        raise UserError(f"no run in {path}: {directory.run_json.name} is missing; give a directory in results/runs")
    if not directory.trace.exists():
        raise UserError(
            f"{path} has no trace.npz, which is written after the first rounds of training: if it is still "
            "training, wait; else train for more --steps, or again with `istbench run --again`"
        )


def _place(profile: "ClusterProfile | None", bandwidth: str | None) -> str:
    if profile is None:
        return "recorded"
    parts = [profile.name, bandwidth] if bandwidth else [profile.name]
    return "-".join(re.sub(r"[^a-z0-9.]+", "", part.lower()) or "cluster" for part in parts)
