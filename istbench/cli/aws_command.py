"""`istbench aws`: clusters of AWS machines, from their template to their deletion."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.aws.access import given_network, own_network, require_programs
from istbench.aws.cost import cluster_cost, cost_lines
from istbench.aws.export import Format, export
from istbench.aws.spec import ClusterSpec
from istbench.aws.template import stack_name, template
from istbench.base.decode import literal_choices
from istbench.base.errors import RunFailed, UserError
from istbench.cli.aws_options import (
    chosen_cluster,
    cluster_options,
    given_spec,
    hours_option,
    price_option,
    region_text,
    resolved_hours,
    spec_options,
    ssm_option,
)
from istbench.cli.options import PathType

if TYPE_CHECKING:
    from istbench.aws.local_files import LocalFiles

_DEFAULT_HOURS = 2.0
# Any region lists all regions; every account has this one.
_ANY_REGION = "us-east-1"


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group("aws")
def command() -> None:
    """Create clusters of AWS machines for `--hosts`, and delete them.

    \b
    istbench aws up --preset 4xm5.2xlarge --max-hours 2
    istbench run --hosts FILE --ssh-config FILE --install --method ist --workload speech
    istbench aws down

    `up` prints both FILEs. A cluster costs money from `up` until `down`, or until its machines end themselves
    after --max-hours.
    """


@command.command("template")
@spec_options
@ssm_option
def template_command(ssm: bool, **given: Any) -> None:
    """Print the CloudFormation template of a cluster, as JSON, which is YAML too."""
    click.echo(json.dumps(template(given_spec(**given), ssm=ssm), indent=2))


@command.command("export")
@spec_options
@hours_option
@click.option("--format", "style", type=click.Choice(literal_choices(Format)), required=True)
def export_command(style: Format, max_hours: float | None, **given: Any) -> None:
    """Print a cluster as YAML for SkyPilot or ParallelCluster."""
    spec = given_spec(**given)
    hours = max_hours or spec.max_hours or _DEFAULT_HOURS
    click.echo(export(spec, style, str(spec.region or "us-east-1"), hours), nl=False)


@command.command("up")
@spec_options
@hours_option
@price_option
@click.option(
    "--from",
    "network",
    metavar="CIDR",
    help="Addresses that may open ssh connections. Default: the present address of this computer.",
)
@ssm_option
@click.option("--yes", is_flag=True, help="Accept the cost without a question.")
@click.option("--dry-run", is_flag=True, help="Print the template, the cost and every call, and do nothing.")
def up_command(
    max_hours: float | None,
    price: float | None,
    network: str | None,
    ssm: bool,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Create a cluster, after a question with its cost, and print the folder with its hosts file and ssh_config.

    An existing cluster keeps its spec and its end, and lets in the present address of this computer.
    """
    spec = given_spec(**given)
    hours = resolved_hours(max_hours, spec)
    if ssm and network is not None:
        raise UserError("--ssm lets no address connect; leave out --from or --ssm")
    allowed = given_network(network) if network is not None else None
    if dry_run:
        region, cost = region_text(spec), cluster_cost(spec, hours, price)
        click.echo(json.dumps(template(spec, ssm=ssm), indent=2))
        source = None if ssm else allowed or "YOUR-ADDRESS/32"
        for line in [*cost_lines(spec, cost, region), *_calls_of_up(spec, hours, region, source)]:
            _say(line)
        return
    from istbench.aws.lifecycle import ClusterRequest, existing_cluster, existing_lines, up
    from istbench.aws.session import connect

    require_programs(ssm=ssm)
    aws = connect(spec.region)
    existing = existing_cluster(aws, spec, ssm=ssm)
    if existing:
        per_hour, lines = existing.record.per_hour, existing_lines(existing, aws.region, hours)
    else:
        cost = cluster_cost(spec, hours, price)
        per_hour, lines = cost.per_hour, cost_lines(spec, cost, aws.region)
    for line in lines:
        _say(line)
    if not (yes or existing):
        _ask()
    if not (ssm or allowed):
        allowed = own_network()
    files = up(aws, ClusterRequest(spec=spec, max_hours=hours, per_hour=per_hour, network=allowed), _say)
    for line in _commands(files, aws.region):
        _say(line)
    click.echo(str(files.folder))


@command.command("status")
@click.option("--region", "regions", multiple=True, help="Search this region only. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def status_command(regions: tuple[str, ...], as_json: bool) -> int:
    """List the clusters in every region, and resources without a cluster; with such resources it exits with 1."""
    from istbench.aws.local_files import records
    from istbench.aws.session import connect
    from istbench.aws.survey import regions_of_account, survey
    from istbench.cli.aws_status import print_status

    known = records()
    if not regions:
        used = [str(record.region) for record in known.values()]
        aws = connect(None, used[0] if used else _ANY_REGION)
        try:
            listed = regions_of_account(aws)
        except RunFailed as error:
            _say(f"only {aws.region} and the regions of clusters from this computer are searched: {error}")
            listed = [aws.region]
        regions = tuple(dict.fromkeys([*used, *listed]))
    found = survey(regions)
    if all(region.problem for region in found):
        raise RunFailed(found[0].problem if found else "no region to search; give --region")
    return print_status(found, known, as_json)


@command.command("down")
@cluster_options
@click.option(
    "--out",
    type=PathType(),
    default="results",
    show_default=True,
    metavar="DIR",
    help="Local directory with the results of the cluster.",
)
@click.option("--discard", is_flag=True, help="Also end the cluster if this deletes results that are not here.")
def down_command(out: Path, discard: bool, **given: Any) -> None:
    """End a cluster and delete its resources. A second call does no harm.

    It refuses if a machine has a run that still trains, or that is not in --out, or cells of --detach.
    """
    from istbench.aws.lifecycle import down

    name, aws = chosen_cluster(**given)
    if down(aws, name, discard=discard, out=out, say=_say):
        _say(f"cluster {name} is gone from {aws.region}")
    else:
        _say(f"there is no cluster {name} in {aws.region}")


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UserError("standard input is no terminal, so nobody can accept the cost; give --yes")
    if not click.confirm("go on?", err=True):
        raise UserError("nothing was started; answer y, or give --yes")


def _commands(files: "LocalFiles", region: str) -> list[str]:
    """The next commands for a cluster, as lines of text."""
    options = shlex.join(["--hosts", str(files.hosts), "--ssh-config", str(files.ssh_config)])
    return [
        f"cluster {files.name} is up:",
        f"  istbench doctor {options} --install",
        f"  istbench run {options} --install --method ist --workload speech",
        f"  istbench aws down --name {files.name} --region {region}",
        "run results are here once `run` ends; the end of the machines deletes results that only they have",
    ]


def _calls_of_up(spec: ClusterSpec, hours: float, region: str, source: str | None) -> list[str]:
    name = stack_name(spec.cluster)
    allowed = f"ssh from {source} alone" if source else "ssh through Session Manager"
    return [
        f"calls in {region}:",
        f"  cloudformation describe-stacks {name}",
        f"  cloudformation create-stack {name}, MaxMinutes={round(hours * 60)}, EndsAt={hours:g} h from now, "
        f"{allowed}, capability CAPABILITY_IAM, on failure DELETE",
        f"  cloudformation describe-stacks {name}, until it is complete",
        f"  ec2 describe-instances of cluster {spec.cluster}",
        f"then ssh to {spec.count} machines: wait until they have booted",
    ]
