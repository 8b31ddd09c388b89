"""`istbench plan`: the memory, bytes and seconds of a cell, without running it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.base.errors import UserError
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.task_file import named_with_file
from istbench.cli.options import (
    BANDWIDTH,
    PATH,
    TIME,
    cluster_or_this_option,
    plugin_option,
    run_options,
    set_option,
    typed_options,
    workload_set_option,
)
from istbench.cli.replaying import clusters_of, replaying
from istbench.cluster.profile import ClusterProfile, select_clusters
from istbench.launch.backends.host_groups import options_on_hosts
from istbench.node.registry import check_name

if TYPE_CHECKING:
    from istbench.cluster.estimate import CellPlan

_Links = tuple[Sequence[float], Sequence[float]]
"""Bandwidths and latencies."""

_OF_WORKLOADS = ("workload", "workload_options", "batch_size", "data", "plugins")


@click.command("plan")
@click.argument("script", required=False, type=PATH, metavar="[RECORD]")
@click.option("--method", required=True, help="Training method; see `istbench list methods`.")
@click.option("--workload", help="Workload to train; see `istbench list workloads`.")
@run_options("nodes", "batch_size", "data")
@set_option
@workload_set_option()
@plugin_option
@cluster_or_this_option
@click.option(
    "--bandwidth",
    type=BANDWIDTH,
    help="Bandwidth of the link of a host, such as 1gbit. Default: the cluster's.",
)
@click.option(
    "--latency",
    type=TIME,
    help="Latency from one host to another, one way, such as 5ms. Default: the cluster's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
@click.pass_context
def command(
    context: click.Context,
    script: Path | None,
    method_options: dict[str, str],
    workload_options: dict[str, str],
    plugins: tuple[str, ...],
    cluster: str | None,
    bandwidth: float | None,
    latency: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Compute the memory per node, and the bytes and seconds per round, of a cell on a cluster.

    Trains nothing, and allocates no model; it runs one only to find or try the neuron groups of a task file. Says
    whether the cell fits, and the largest width and the fewest nodes that would. RECORD is a file of
    `istbench record`, in place of --workload.
    """
    links: _Links = [] if bandwidth is None else [bandwidth], [] if latency is None else [latency]
    if script is None:
        ((there,),) = select_clusters([cluster or DEFAULT_CLUSTER], *links).values()
        plan = _plan_cell(there, given, method_options, workload_options, plugins)
    else:
        plan = _plan_script(context, script, cluster, links, given, method_options)
    if as_json:
        click.echo(json.dumps(plan.as_json(), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_table
        from istbench.report.tables.plan import plan_table

        print_table(plan_table(plan), sys.stdout)


def _plan_cell(
    cluster: ClusterProfile,
    given: dict[str, Any],
    method_options: dict[str, str],
    workload_options: dict[str, str],
    plugins: tuple[str, ...],
) -> "CellPlan":
    if given["workload"] is None:
        raise UserError("plan needs a --workload, or a file of `istbench record`")
    set_for_method: dict[str, Any] = method_options
    if cluster.host is not None:
        set_for_method = options_on_hosts(set_for_method, [min(cluster.host.nodes, given["nodes"])])
    given["workload"], plugins = named_with_file(given["workload"], plugins)
    check_name("methods", given["method"], plugins)
    check_name("workloads", given["workload"], plugins)
    from istbench.plan.planner import PlanRequest, make_plan

    request = PlanRequest(
        **given,
        method_options=set_for_method,
        workload_options=workload_options,
        plugins=plugins,
        cluster=cluster,
    )
    return make_plan(request, replaying)


def _plan_script(
    context: click.Context,
    script: Path,
    cluster: str | None,
    links: "_Links",
    given: dict[str, Any],
    method_options: dict[str, str],
) -> "CellPlan":
    """The plan of the recorded script in file `script`.

    Raises:
        UserError: also if an option is typed that only a workload has.
    """
    typed = typed_options(context)
    for name in _OF_WORKLOADS:
        if name in typed:
            raise UserError(f"{typed[name]} is for a workload, and {script} is a recorded script; leave it out")
    check_name("methods", given["method"])
    from istbench.cluster.script_record import load_script

    record = load_script(script)
    selected, assumed = clusters_of(record, [cluster] if cluster else [], *links)
    ((there,),) = selected.values()
    from istbench.plan.script_plan import plan_script
    from istbench.plan.script_time import ChosenMethod

    with replaying():
        chosen = ChosenMethod(name=given["method"], options=method_options)
        return plan_script(record, chosen, given["nodes"], there, assumed)
