"""`istbench plan`: the memory, bytes and seconds of a cell, without running it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.api.replaying import clusters_of, replaying
from istbench.base.errors import UserError
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.run import RunRequest
from istbench.cli.options import (
    BANDWIDTH,
    PATH,
    TIME,
    cluster_or_this_option,
    json_option,
    option,
    plugin_option,
    refuse_typed,
    run_options,
    set_option,
    workload_set_option,
)
from istbench.cluster.profile import ClusterProfile, select_clusters
from istbench.launch.backends.backend import on_hosts
from istbench.node.registry import check_name
from istbench.report.phrases import count_nodes, latency_line, network_line, sustained_line
from istbench.report.tables.numbers import number
from istbench.report.tables.table import Scalar, Table, items_table

if TYPE_CHECKING:
    from istbench.cluster.estimate import CellPlan

_MEGA, _GIB = 1e6, 2**30
_OF_WORKLOADS = ("workload", "workload_options", "batch_size", "shares", "data", "plugins")


@click.command("plan")
@click.argument("script", required=False, type=PATH, metavar="[RECORD]")
@option("--method", "Training method; see `istbench list methods`.", required=True)
@option("--workload", "Workload to train; see `istbench list workloads`.")
@run_options("nodes", "batch_size", "shares", "data")
@set_option
@workload_set_option()
@plugin_option
@cluster_or_this_option
@option("--bandwidth", "Bandwidth of the link of a host, such as 1gbit. Default: the cluster's.", BANDWIDTH)
@option("--latency", "Latency from one host to another, one way, such as 5ms. Default: the cluster's.", TIME)
@json_option
def command(
    script: Path | None,
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
    bandwidths, latencies = ([] if value is None else [value] for value in (bandwidth, latency))
    if script is None:
        ((there,),) = select_clusters([cluster or DEFAULT_CLUSTER], bandwidths, latencies).values()
        plan = _plan_cell(cluster=there, **given)
    else:
        plan = _plan_script(script, cluster, bandwidths, latencies, given)
    if as_json:
        click.echo(json.dumps(plan.as_json(), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_table

        print_table(plan_table(plan), sys.stdout)


def _plan_cell(*, cluster: ClusterProfile, workload: str | None, **given: Any) -> "CellPlan":
    if workload is None:
        raise UserError("plan needs a --workload, or a file of `istbench record`")
    request = RunRequest(workload=workload, **given)
    if cluster.host is not None:
        request = on_hosts(request, [min(cluster.host.nodes, request.nodes)])
    check_name("methods", request.method, request.plugins)
    check_name("workloads", request.workload, request.plugins)
    from istbench.plan.planner import make_plan

    return make_plan(request, cluster, replaying)


def _plan_script(
    script: Path, cluster: str | None, bandwidths: list[float], latencies: list[float], given: dict[str, Any]
) -> "CellPlan":
    """The plan of the recorded script in file `script`."""
    refuse_typed(_OF_WORKLOADS, f"is for a workload, and {script} is a recorded script")
    check_name("methods", given["method"])
    from istbench.cluster.script_record import load_script

    record = load_script(script)
    selected, assumed = clusters_of(record, [cluster] if cluster else [], bandwidths, latencies)
    ((there,),) = selected.values()
    from istbench.plan.script_time import ChosenMethod
    from istbench.plan.script_trace import plan_script

    with replaying():
        chosen = ChosenMethod(name=given["method"], options=given["method_options"])
        return plan_script(record, chosen, given["nodes"], there, assumed)


def plan_table(plan: "CellPlan") -> Table:
    """Memory, messages and time that a cell needs, an item in each row."""
    rows: list[tuple[str, str, Scalar]] = [
        ("model parameters", f"{plan.model_parameters:,}", plan.model_parameters),
        ("fits", *_fits(plan)),
    ]
    memory = plan.memory
    if memory is not None:
        for part, size in memory.parts.items():
            name = f"MB of {part.replace('_', ' ')} per node"
            rows.append((name, "unknown" if size is None else _mb(size), None if size is None else size / _MEGA))
        total = _mb(memory.total) if memory.complete else f"at least {_mb(memory.total)}"
        rows.append(("MB in total per node", total, memory.total / _MEGA))
    rows += [
        ("local steps per round", f"{plan.round_steps:,}", plan.round_steps),
        ("MB sent per node and round", *_known(None if plan.sent is None else plan.sent / _MEGA)),
        ("seconds per round", *_known(plan.seconds)),
        ("seconds of computing per round", *_known(plan.compute_seconds)),
    ]
    if plan.width:
        rows.append((f"largest {plan.width} that fits", *_answer(plan, plan.largest_width)))
    rows.append(("fewest nodes that fit", *_answer(plan, plan.fewest_nodes)))
    batch = "its own batch" if plan.batch_size is None else f"batch {plan.batch_size}"
    return items_table(
        rows,
        title=f"{plan.workload} by {plan.method}, {count_nodes(plan.nodes)} of {plan.cluster.name}, {batch}: "
        "planned, not run",
        footer=(
            *_turns(plan),
            *network_line(plan.cluster),
            *sustained_line(plan.cluster),
            *latency_line(plan.cluster.latency_s),
            f"Assumed: {'; '.join(plan.assumed)}.",
        ),
    )


def _fits(plan: "CellPlan") -> tuple[str, Scalar]:
    if plan.memory is None or plan.fits is None:
        return "unknown", None
    spare, has = (plan.cluster.memory_bytes - plan.memory.total) / _GIB, f"{plan.cluster.memory_gib:g} GiB per node"
    if plan.fits:
        return f"yes, {spare:,.2f} GiB free of {has}", True
    return f"no, {-spare:,.2f} GiB more than {has}", False


def _answer(plan: "CellPlan", value: int | None) -> tuple[str, Scalar]:
    known = plan.memory is not None and plan.memory.complete
    return (f"{value:,}", value) if value is not None else ("none" if known else "unknown", None)


def _known(value: float | None) -> tuple[str, Scalar]:
    return ("unknown", None) if value is None else (number(value), value)


def _mb(size: int) -> str:
    return f"{size / _MEGA:,.2f}"


def _turns(plan: "CellPlan") -> list[str]:
    if plan.memory is None or not plan.memory.reused:
        return []
    return [
        f"Exchange buffers take up to {_mb(plan.memory.reused)} MB more, in memory that activations no longer need."
    ]
