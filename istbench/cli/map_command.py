"""`istbench map`: the first method in each cell of bandwidth and nodes, by replay."""

import json
import sys
from pathlib import Path

import click

from istbench.base.decode import convert
from istbench.base.errors import UserError
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.numbers import Level
from istbench.base.units import parse_bandwidth, parse_time
from istbench.cli.options import (
    ResultsType,
    explain_option,
    node_counts,
    plugin_option,
    split_list,
    typed_options,
)
from istbench.cli.replaying import named_code, redealing, replaying
from istbench.cluster.profile import load_profile, select_clusters

_BANDWIDTHS = "10mbit,30mbit,100mbit,300mbit,1gbit,3gbit,10gbit"
_LATENCIES = "0.1ms,1ms,10ms,100ms"


@click.command("map")
@click.argument("results", default="results", type=ResultsType())
@click.option(
    "--cluster",
    default=DEFAULT_CLUSTER,
    show_default=True,
    metavar="NAME|FILE.toml",
    help="Cluster of the nodes; see `istbench list clusters`.",
)
@click.option(
    "--bandwidth",
    "bandwidths",
    default=_BANDWIDTHS,
    show_default=True,
    metavar="BANDWIDTH,...",
    help="Columns: bandwidths of the link of a host.",
)
@click.option(
    "--by",
    default="nodes",
    show_default=True,
    metavar="nodes|latency|OPTION",
    help="Rows: numbers of nodes, latencies between hosts, or values of a method's option, such as local_steps.",
)
@click.option(
    "--nodes",
    metavar="N,...",
    help="Numbers of nodes, also such that were never run, which are extrapolated. Default: all that were run. "
    "Beside --by latency or an option, one number.",
)
@click.option(
    "--latency",
    "latencies",
    metavar="TIME,...",
    help=f"Latencies of --by latency, one way. Default: {_LATENCIES}.",
)
@click.option(
    "--target",
    metavar="LEVEL",
    help="Level of the metric, such as 0.77. Default: the hardest target of the workload that a method reached.",
)
@plugin_option
@click.option("--workload", help="Only this workload.")
@click.option("--metric", help="Another metric of the evaluations, such as top10.")
@click.option("--pictures/--no-pictures", default=True, help="Draw PNG and SVG into RESULTS/report.")
@explain_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of all cells and nothing else on stdout.")
@click.pass_context
def command(
    context: click.Context,
    results: Path,
    cluster: str,
    bandwidths: str,
    by: str,
    nodes: str | None,
    latencies: str | None,
    target: str | None,
    plugins: tuple[str, ...],
    workload: str | None,
    metric: str | None,
    pictures: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Show which method reaches a target first at each bandwidth and on each number of nodes. Trains nothing.

    RESULTS is a results directory with finished runs of several methods, or the directory of one run. A cell has
    the first method, and by how much the next one is slower. It says if the ranges over seeds overlap, and if
    nobody reached the target.

    For a number of nodes that was never run, --nodes needs the code of runs by a plug-in or a task file: --plugin
    FILE.py. No path in RESULTS is imported.
    """
    typed = split_list(bandwidths, "--bandwidth", "100mbit,1gbit are two")
    listed = [parse_bandwidth(text, "--bandwidth") for text in typed]
    apart: list[float] = []
    if by == "latency":
        times = split_list(latencies or _LATENCIES, "--latency", "1ms,10ms are two")
        apart = [parse_time(text, "--latency") for text in times]
    elif "latencies" in typed_options(context):
        raise UserError("--latency is for --by latency; add it, or leave --latency out")
    families = select_clusters([cluster], listed, apart)
    counts = node_counts(nodes)
    workload, plugins = named_code(workload, plugins, needed=bool(counts))
    if by != "nodes" and len(counts) > 1:
        raise UserError(f"--nodes {nodes}: a map by {by} has one number of nodes; name one")
    level = None if target is None else convert(target.strip(), Level, lambda _: "--target", text=True)
    from istbench.cli.show import report_folder
    from istbench.report.map import build_maps
    from istbench.report.output.formats import print_report
    from istbench.report.output.map_picture import draw_maps
    from istbench.report.report import Report
    from istbench.report.tables.winners import winners_table

    with replaying() as tell:
        maps, problems = build_maps(
            results,
            families,
            by=by,
            cluster=load_profile(cluster).name,
            target=level,
            workload=workload,
            metric=metric,
            nodes=counts,
            redeal=redealing(plugins) if counts else None,
            tell=tell,
        )
    if as_json:
        records = [record for found in maps for record in found.records()]
        click.echo(json.dumps(records, indent=1, allow_nan=False))
    tables = () if as_json else tuple(winners_table(found) for found in maps)
    report, drawn = Report(tables=tables, plots=(), problems=problems), list[Path]()
    try:
        if pictures:
            drawn = draw_maps(maps, report_folder(results))
    finally:  # a full disk must not lose the tables
        print_report(report, sys.stdout, pictures=drawn, explain=explain)
