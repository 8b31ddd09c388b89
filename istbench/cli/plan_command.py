"""`istbench plan`: the memory, bytes and seconds of a cell, without running it."""

import json
import sys
from typing import Any

import click

from istbench.cli.options import cluster_option, parse_pairs, plugin_option, run_options
from istbench.cluster.profile import ClusterProfile
from istbench.registry import check_name


@click.command("plan")
@click.option("--method", required=True, help="Training method; see `istbench list methods`.")
@click.option("--workload", required=True, help="Workload to train; see `istbench list workloads`.")
@run_options("nodes", "batch_size", "data")
@click.option("--set", "method_options", multiple=True, metavar="NAME=VALUE", help="Method option.")
@click.option("--workload-set", "workload_options", multiple=True, metavar="NAME=VALUE", help="Workload option.")
@plugin_option
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(
    method_options: tuple[str, ...],
    workload_options: tuple[str, ...],
    plugins: tuple[str, ...],
    cluster: ClusterProfile,
    as_json: bool,
    **given: Any,
) -> None:
    """Compute the memory per node, and the bytes and seconds per round, of a cell on a cluster.

    Trains and allocates nothing. Says whether it fits, and the largest width and the fewest nodes that would.
    """
    set_for_method = parse_pairs(method_options, "--set")
    set_for_workload = parse_pairs(workload_options, "--workload-set")
    check_name("methods", given["method"], plugins)
    check_name("workloads", given["workload"], plugins)
    from istbench.cli.replaying import replaying
    from istbench.plan.planner import PlanRequest, make_plan
    from istbench.plan.table import plan_table
    from istbench.report.output.terminal import print_table

    request = PlanRequest(
        **given,
        method_options=set_for_method,
        workload_options=set_for_workload,
        plugins=plugins,
        cluster=cluster,
    )
    plan = make_plan(request, replaying)
    if as_json:
        click.echo(json.dumps(plan.as_json(), allow_nan=False))
    else:
        print_table(plan_table(plan), sys.stdout)
