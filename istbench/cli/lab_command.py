"""`istbench lab`: the same commands on a shaped network inside this machine."""

import os

import click

from istbench.base.errors import UserError
from istbench.base.units import parse_bandwidth, parse_time
from istbench.cli import compare_command, run_command, validate_command
from istbench.cli.options import hosts_options, lab_nodes_option, latency_option, racks_options, typed_options
from istbench.cluster.profile import bandwidth_text
from istbench.launch.backends.here import Here
from istbench.launch.lab.network import ShapedNetwork, check


@click.group("lab")
@lab_nodes_option
@click.option(
    "--bandwidth",
    default="1gbit",
    show_default=True,
    help="Bandwidth of every host's link in each direction, such as 300mbit.",
)
@latency_option
@hosts_options
@racks_options
@click.pass_context
def command(
    context: click.Context,
    nodes: int,
    bandwidth: str,
    latency: str,
    host_nodes: int,
    inside: str | None,
    racks: int,
    uplink: str | None,
) -> None:
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
        _check_nothing_named(context)
        return
    place = ShapedNetwork(
        nodes=nodes,
        bandwidth=parse_bandwidth(bandwidth, "--bandwidth"),
        latency_s=parse_time(latency, "--latency"),
        host_nodes=host_nodes,
        inside=None if inside is None else parse_bandwidth(inside, "--inside"),
        racks=racks,
        uplink=None if uplink is None else parse_bandwidth(uplink, "--uplink"),
    )
    check()
    context.obj = Here(lab=place)
    _say(place)


def _check_nothing_named(context: click.Context) -> None:
    """Refuse options of the lab before `validate`, which has its own."""
    named = typed_options(context).values()
    if named:
        raise UserError(f"validate makes its own labs: give {', '.join(named)} after it")


def _say(place: ShapedNetwork) -> None:
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
command.add_command(validate_command.command)
