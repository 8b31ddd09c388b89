"""`istbench replay`: the time of recorded runs on other clusters."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from istbench.cli.options import PathType, report_options, split_list
from istbench.cluster.profile import parse_bandwidth, select_clusters
from istbench.config.defaults import DEFAULT_CLUSTER
from istbench.config.run import RUN_OPTIONS

if TYPE_CHECKING:
    from istbench.report.output import Format
    from istbench.results.on_cluster import Redeal


@click.command("replay")
@click.argument("results", default="results", type=PathType())
@click.option(
    "--cluster",
    "clusters",
    default=DEFAULT_CLUSTER,
    show_default=True,
    metavar="NAME|FILE.toml,...",
    help="Clusters, separated by commas; see `istbench list clusters`.",
)
@click.option(
    "--bandwidth",
    "bandwidths",
    metavar="BANDWIDTH,...",
    help="Bandwidths of the link of a host, such as 100mbit,1gbit,10gbit. Default: that of the cluster.",
)
@click.option(
    "--nodes",
    metavar="N,...",
    help="Also numbers of nodes that were never run, such as 16,64,256: extrapolated from the recorded runs.",
)
@report_options
def command(
    results: Path,
    clusters: str,
    bandwidths: str | None,
    nodes: str | None,
    output_format: "Format",
    workload: str | None,
    metric: str | None,
    levels: tuple[float, ...],
    baseline: str,
    pictures: bool,
) -> None:
    """Compute the seconds and dollars of recorded runs on other clusters. Trains nothing.

    RESULTS is a results directory, or the directory of one run. With several bandwidths, a table gives those at
    which one method overtakes another.

    --nodes deals each recorded run to other numbers of nodes, by its method's plan (see docs/plan.md).
    """
    names = split_list(clusters, "--cluster", "see `istbench list clusters`")
    listed = split_list(bandwidths, "--bandwidth", "100mbit,1gbit are two") if bandwidths is not None else []
    counts = sorted({_count(text) for text in split_list(nodes, "--nodes", "16,64 are two")}) if nodes else []
    asked = select_clusters(names, [parse_bandwidth(text) for text in listed])
    from istbench.cli.replaying import replaying
    from istbench.cli.show import show_report
    from istbench.report.on_clusters import build_report_on_clusters

    with replaying():
        report = build_report_on_clusters(
            results,
            asked,
            baseline=baseline,
            workload=workload,
            metric=metric,
            levels=levels,
            nodes=counts,
            redeal=_redeal() if counts else None,
        )
    show_report(report, results, output_format=output_format, pictures=pictures)


def _count(text: str) -> int:
    (option,) = (option for option in RUN_OPTIONS if option.name == "nodes")
    return int(option.decode(text, "--nodes", text=True))


def _redeal() -> "Redeal":
    from istbench.plan.redeal import redeal  # torch, which no other replay needs

    return redeal
