"""`istbench replay`: the time of recorded runs on other clusters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from istbench.api.replaying import SCRIPT_NODES, clusters_of, named_code, redealing, replaying
from istbench.base.decode import convert
from istbench.base.files import is_file
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.shares import Shares
from istbench.base.units import parse_bandwidth, parse_time
from istbench.cli.options import (
    CLUSTER_HELP,
    OF_FAULTS,
    RESULTS,
    Typed,
    example_option,
    list_of,
    mtbf_options,
    node_counts,
    option,
    plugin_option,
    refuse_typed,
    report_options,
    results_and_pictures,
    script_methods_option,
    take_faults,
    take_shown,
)
from istbench.cluster.profile import select_clusters

_OF_RUNS = (
    "shares",
    *OF_FAULTS,
    "workload",
    "metric",
    "levels",
    "baseline",
    "pictures",
    "plugins",
    "all_tables",
)


@click.command("replay")
@click.argument("results", default="results", type=RESULTS)
@example_option
@option(
    "--cluster",
    f"Clusters, separated by commas; see `istbench list clusters`. {CLUSTER_HELP}",
    list_of(lambda name, _: name, "see `istbench list clusters`"),
    default=(),
    name="clusters",
    metavar="NAME|FILE.toml,...",
)
@option(
    "--bandwidth",
    "Bandwidths of the link of a host, such as 100mbit,1gbit,10gbit. Default: that of the cluster.",
    list_of(parse_bandwidth, "100mbit,1gbit are two"),
    default=(),
    name="bandwidths",
    metavar="BANDWIDTH,...",
)
@option(
    "--latency",
    "Latencies from one host to another, one way, such as 1ms,30ms. Default: that of the cluster.",
    list_of(parse_time, "1ms,30ms are two"),
    default=(),
    name="latencies",
    metavar="TIME,...",
)
@option(
    "--nodes",
    "Also numbers of nodes that were never run, such as 16,64,256: extrapolated from the recorded runs.",
    Typed(node_counts),
    default=(),
    metavar="N,...",
)
@option(
    "--shares",
    "Also with the samples of unequal nodes by these speeds, or by the speeds of the cluster.",
    Typed(lambda text, flag: convert(text.strip(), Shares, lambda _: flag)),
    metavar="SPEED,...|speed",
)
@mtbf_options
@script_methods_option
@plugin_option
@report_options
def command(
    results: Path,
    example: bool,
    clusters: Sequence[str],
    bandwidths: Sequence[float],
    latencies: Sequence[float],
    nodes: Sequence[int],
    methods: tuple[str, ...],
    plugins: tuple[str, ...],
    pictures: bool,
    **given: Any,
) -> None:
    """Compute the seconds and dollars of recorded runs on other clusters. Trains nothing.

    RESULTS is a results directory, the directory of one run, or a file of `istbench record`. With several
    bandwidths, --all also gives those at which one method overtakes another. Each latency has its own column.

    --nodes deals each recorded run to other numbers of nodes, by its method's plan (see docs/plan.md). A run by a
    plug-in or a task file needs that file too: --plugin FILE.py. No path in RESULTS is imported. A recorded script
    is dealt to 2, 4 and 8 nodes by default (see docs/record.md).

    --shares adds rows for runs whose method divides samples. It shows what `run --shares` may save.

    --mtbf adds a table with faults: each of them ends all nodes, which go on from the last checkpoint.
    """
    results, drawn_in = results_and_pictures(results, example, pictures)
    links, shown = (bandwidths, latencies), take_shown(given)
    if is_file(results):
        refuse_typed(_OF_RUNS, "is for recorded runs, not for a recorded script")
        from istbench.cluster.script_record import load_script

        record = load_script(results)
        families, assumed = clusters_of(record, clusters, *links)
        profiles = [profile for family in families.values() for profile in family]
        from istbench.api.show import show_report
        from istbench.cli.script_report import script_report

        with replaying():
            steps = script_report(record, profiles, nodes or SCRIPT_NODES, methods, assumed)
        show_report(steps, results.parent, pictures=False, **shown)
        return
    selected = select_clusters(clusters or [DEFAULT_CLUSTER], *links)
    refuse_typed(("methods",), "is for a file of `istbench record`")
    faults = take_faults(given)
    given["workload"], plugins = named_code(given["workload"], plugins, needed=bool(nodes))
    from istbench.api.show import page_beside, show_report
    from istbench.report.report import build_report_on_clusters

    with replaying() as tell:
        report = build_report_on_clusters(
            results,
            selected,
            nodes=nodes,
            redeal=redealing(plugins) if nodes else None,
            tell=tell,
            faults=faults,
            **given,
        )
    page = None if drawn_in is None else page_beside(drawn_in)
    show_report(report, results, pictures=drawn_in is not None, beside=drawn_in, page=page, **shown)
