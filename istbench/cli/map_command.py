"""`istbench map`: the first method in each cell of bandwidth and nodes, by replay."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.api.replaying import SCRIPT_NODES, clusters_of, map_latencies, named_code, redealing, replaying
from istbench.base.errors import UserError
from istbench.base.files import is_file
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.numbers import Level
from istbench.base.units import parse_bandwidth, parse_time
from istbench.cli.options import (
    OF_FAULTS,
    RESULTS,
    Typed,
    cluster_or_this_option,
    example_option,
    explain_option,
    kind_of,
    list_of,
    mtbf_options,
    node_counts,
    option,
    plugin_option,
    refuse_typed,
    results_and_pictures,
    script_methods_option,
    take_faults,
)
from istbench.cluster.profile import load_profile, select_clusters

if TYPE_CHECKING:
    from istbench.cli.script_report import FastestMap
    from istbench.report.map import WinnerMap

_BANDWIDTHS = "10mbit,30mbit,100mbit,300mbit,1gbit,3gbit,10gbit"
_OF_RUNS = ("target", *OF_FAULTS, "plugins", "workload", "metric", "pictures")


@click.command("map")
@click.argument("results", default="results", type=RESULTS)
@example_option
@cluster_or_this_option
@option(
    "--bandwidth",
    "Columns: bandwidths of the link of a host.",
    list_of(parse_bandwidth, "100mbit,1gbit are two"),
    default=_BANDWIDTHS,
    name="bandwidths",
    metavar="BANDWIDTH,...",
)
@option(
    "--by",
    "Rows: numbers of nodes, latencies between hosts, or values of a method's option, such as local_steps.",
    default="nodes",
    metavar="nodes|latency|OPTION",
)
@option(
    "--nodes",
    "Numbers of nodes, also such that were never run, which are extrapolated. Default: all that were run. "
    "Beside --by latency or an option, one number.",
    Typed(node_counts),
    default=(),
    metavar="N,...",
)
@option(
    "--latency",
    "Latencies of --by latency, one way. Default: 0.1ms,1ms,10ms,100ms.",
    list_of(parse_time, "1ms,10ms are two"),
    name="latencies",
    metavar="TIME,...",
)
@mtbf_options
@option(
    "--target",
    "Level of the metric, such as 0.77. Default: the hardest target of the workload that a method reached.",
    kind_of(Level, "level"),
)
@script_methods_option
@plugin_option
@option("--workload", "Only this workload.")
@option("--metric", "Another metric of the evaluations, such as top10.")
@option("--pictures/--no-pictures", "Draw PNG and SVG into RESULTS/report.", default=True, shown=None)
@explain_option
@option("--json", "Print a JSON list of all cells and nothing else on stdout.", bool, name="as_json")
def command(
    results: Path,
    example: bool,
    cluster: str | None,
    bandwidths: list[float],
    by: str,
    nodes: Sequence[int],
    latencies: list[float] | None,
    methods: tuple[str, ...],
    plugins: tuple[str, ...],
    pictures: bool,
    explain: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Show which method reaches a target first at each bandwidth and on each number of nodes. Trains nothing.

    RESULTS is a results directory with finished runs of several methods, or the directory of one run. A cell has
    the first method, and by how much the next one is slower. It says if the ranges over seeds overlap, and if
    nobody reached the target.

    For a number of nodes that was never run, --nodes needs the code of runs by a plug-in or a task file: --plugin
    FILE.py. No path in RESULTS is imported.

    --mtbf draws the map with faults: each of them ends all nodes, which go on from the last checkpoint.

    Of a file of `istbench record`, a cell has the method with the most samples per second (see docs/record.md).
    """
    apart = map_latencies(by, latencies or ())
    results, drawn_in = results_and_pictures(results, example, pictures)
    if is_file(results):
        refuse_typed(_OF_RUNS, "is for recorded runs, not for a recorded script")
        if by not in ("nodes", "latency"):
            raise UserError(f"--by {by} is for recorded runs; a map of a recorded script is by nodes or latency")
        counts = nodes or (SCRIPT_NODES if by == "nodes" else SCRIPT_NODES[1:2])
        if by == "latency" and len(counts) > 1:
            raise UserError("--nodes: a map by latency has one number of nodes; name one")
        from istbench.cluster.script_record import load_script

        record = load_script(results)
        families, assumed = clusters_of(record, [cluster] if cluster else [], bandwidths, apart)
        from istbench.cli.script_report import script_map

        with replaying():
            found, problems = script_map(record, families, counts, methods, assumed, by)
        _print([found], problems, as_json=as_json, explain=explain)
        return
    refuse_typed(("methods",), "is for a file of `istbench record`")
    faults = take_faults(given)
    families = select_clusters([cluster or DEFAULT_CLUSTER], bandwidths, apart)
    given["workload"], plugins = named_code(given["workload"], plugins, needed=bool(nodes))
    from istbench.api.show import report_folder
    from istbench.report.map import build_maps
    from istbench.report.output.map_picture import draw_maps

    with replaying() as tell:
        maps, problems = build_maps(
            results,
            families,
            by=by,
            cluster=load_profile(cluster or DEFAULT_CLUSTER).name,
            nodes=nodes,
            faults=faults,
            redeal=redealing(plugins) if nodes else None,
            tell=tell,
            **given,
        )
    drawn = list[Path]()
    try:
        if drawn_in is not None:
            drawn = draw_maps(maps, report_folder(drawn_in))
    finally:  # a full disk must not lose the tables
        _print(maps, problems, drawn, as_json=as_json, explain=explain)


def _print(
    maps: "Sequence[WinnerMap | FastestMap]",
    problems: tuple[str, ...],
    pictures: Sequence[Path] = (),
    *,
    as_json: bool,
    explain: bool,
) -> None:
    from istbench.report.output.formats import print_report
    from istbench.report.report import Report

    if as_json:
        records = [record for one in maps for record in one.records()]
        click.echo(json.dumps(records, indent=1, allow_nan=False))
        maps = ()
    report = Report(
        answers=tuple(line for one in maps for line in one.answers),
        tables=tuple(one.table() for one in maps),
        problems=problems,
    )
    print_report(report, sys.stdout, pictures=pictures, explain=explain)
