"""`istbench lab`: the same commands on a shaped network inside this machine."""

import os
from typing import Any

import click

from istbench.base.errors import UserError
from istbench.cli import compare_command, faults_command, run_command, validate_command
from istbench.cli.options import BANDWIDTH, link_options, list_as, option, typed_options
from istbench.cluster.profile import Speeds, bandwidth_text
from istbench.launch.backends.here import Here
from istbench.launch.lab.network import MOST_NODES, ShapedNetwork


@click.group("lab")
@option("--nodes", "Nodes of the lab, each in a network namespace.", click.IntRange(2, MOST_NODES), default=2)
@option(
    "--bandwidth", "Bandwidth of every host's link in each direction, such as 300mbit.", BANDWIDTH, default="1gbit"
)
@link_options
@option(
    "--speeds",
    "Computing speed of each node, at most 1, such as 1,1,.5. A slow node gets a share of its cores.",
    list_as(Speeds, "1,.5 are two"),
    default=(),
    metavar="SPEED,...",
)
@click.pass_context
def command(context: click.Context, latency: float, **given: Any) -> None:
    """Run a command on a shaped network inside this machine (Linux, root).

    \b
    istbench lab --nodes 2 --bandwidth 100mbit -- run --method ist --workload speech
    istbench lab --nodes 4 --host-nodes 2 --bandwidth 1gbit -- run --method ddp --workload speech
    istbench lab --nodes 4 --bandwidth 1gbit --racks 2 --uplink 1gbit -- run --method ist --workload speech
    istbench lab validate

    Each host has its own network namespace, and token buckets shape both ends of its link. A host is one node, or
    --host-nodes that share the link. --racks puts the hosts on several switches, and the hosts of each share its
    --uplink. With more nodes than cores, compute and links run
    slower by the same factor, and istbench divides the clocks by it.
    """
    # torch warns that namespaces have no host names, which helps nobody.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if context.invoked_subcommand == "validate":
        named = typed_options().values()
        if named:
            raise UserError(f"validate makes its own labs: give {', '.join(named)} after it")
        return
    place = ShapedNetwork(latency_s=latency, **given)
    place.check()
    context.obj = Here(lab=place)
    click.echo(f"lab: {place.nodes} nodes, {place.lab.summary}", err=True)
    if place.lab.dilation > 1:
        slowed = bandwidth_text(place.bandwidth / place.lab.dilation)
        click.echo(
            f"lab: more nodes than cores: compute and links run {place.lab.dilation:g} times slower ({slowed}), "
            "and clocks are divided by that",
            err=True,
        )


command.add_command(run_command.command)
command.add_command(compare_command.command)
command.add_command(faults_command.command)
command.add_command(validate_command.command)
