"""`istbench aws`: clusters of AWS machines, from their template to the last trace of them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from istbench.aws.commands import errand, node_words, prepare_lines, start_lines
from istbench.aws.cost import cluster_cost, cost_lines
from istbench.aws.export import Format, export
from istbench.aws.spec import ClusterSpec
from istbench.aws.template import stack_name, template
from istbench.cli.aws_options import (
    chosen_cluster,
    cluster_options,
    given_spec,
    hours_option,
    price_option,
    region_text,
    resolved_hours,
    results_of,
    spec_options,
)
from istbench.cli.options import PathType
from istbench.errors import RunFailed, UserError

_DEFAULT_HOURS = 2.0
# Which regions there are can be asked in any; every account has this one.
_ANY_REGION = "us-east-1"


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group("aws")
def command() -> None:
    """Clusters of AWS machines: made, used, and taken down again.

    \b
    istbench aws up --preset 4xm5.2xlarge --max-hours 2
    istbench aws run -- run --method ist --workload speech
    istbench aws fetch
    istbench aws down

    A cluster costs from `up` until `down`, or until its hours are over, when its machines end themselves.
    """


@command.command("template")
@spec_options
def template_command(**given: Any) -> None:
    """Print the CloudFormation template of a cluster, as JSON, which is YAML too."""
    click.echo(json.dumps(template(given_spec(**given)), indent=2))


@command.command("export")
@spec_options
@hours_option
@click.option("--format", "style", type=click.Choice(["skypilot", "parallelcluster"]), required=True)
def export_command(style: Format, max_hours: float | None, **given: Any) -> None:
    """Print a cluster as YAML of SkyPilot or ParallelCluster."""
    spec = given_spec(**given)
    hours = max_hours or spec.max_hours or _DEFAULT_HOURS
    click.echo(export(spec, style, str(spec.region or "us-east-1"), hours), nl=False)


@command.command("up")
@spec_options
@hours_option
@price_option
@click.option("--yes", is_flag=True, help="Do not ask whether the cost is all right.")
@click.option("--dry-run", is_flag=True, help="Print the template, the cost and every call, and do nothing.")
def up_command(max_hours: float | None, price: float | None, yes: bool, dry_run: bool, **given: Any) -> None:
    """Make a cluster, after saying what it costs; one that is there already stays as it was made."""
    spec = given_spec(**given)
    hours = resolved_hours(max_hours, spec)
    if dry_run:
        region, cost = region_text(spec), cluster_cost(spec, hours, price)
        click.echo(json.dumps(template(spec), indent=2))
        for line in [*cost_lines(spec, cost, region), *_calls_of_up(spec, hours, region)]:
            _say(line)
        return
    from istbench.aws.lifecycle import Plan, up
    from istbench.aws.session import connect
    from istbench.aws.standing import standing, standing_lines

    aws = connect(spec.region)
    there = standing(aws, spec)
    if there:
        per_hour, lines = there.made.per_hour, standing_lines(there, aws.region, hours)
    else:
        cost = cluster_cost(spec, hours, price)
        per_hour, lines = cost.per_hour, cost_lines(spec, cost, aws.region)
    for line in lines:
        _say(line)
    if not (yes or there):
        _ask()
    up(aws, Plan(spec=spec, max_hours=hours, per_hour=per_hour), _say)
    _say(
        f"cluster {spec.cluster} is up: `istbench aws run -- run --method ist ...`, and `istbench aws down` ends it"
    )


@command.command("status")
@click.option("--region", "regions", multiple=True, help="Look here only. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def status_command(regions: tuple[str, ...], as_json: bool) -> int:
    """Say what clusters there are in every region, and what is left of others: then it exits with 1."""
    from istbench.aws.local_files import recall
    from istbench.aws.session import connect
    from istbench.aws.survey import regions_of_account, survey
    from istbench.cli.aws_status import print_status

    memory = recall()
    if not regions:
        first = memory.regions[0] if memory.regions else None
        try:
            listed = regions_of_account(connect(first, _ANY_REGION))
        except RunFailed as error:
            _say(f"only regions that were used from here are looked at: {error}")
            listed = []
        regions = tuple(dict.fromkeys([*map(str, memory.regions), *listed]))
    found = survey(regions)
    if all(region.problem for region in found):
        raise RunFailed(found[0].problem if found else "no region to look at; give --region")
    return print_status(found, memory, as_json)


@command.command("run", context_settings={"ignore_unknown_options": True})
@cluster_options
@click.option("--out", type=PathType(), metavar="DIR", help="Results so far, which go along. Default: as fetch.")
@click.option(
    "--linger",
    type=click.IntRange(1, 600),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="After the command, the machines wait so long for another one, and end themselves.",
)
@click.option("--dry-run", is_flag=True, help="Print what every machine would be told, and tell none.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def run_command(out: Path | None, linger: int, dry_run: bool, words: tuple[str, ...], **given: Any) -> int:
    """Run an istbench command on a cluster: `run` on all machines as one, under torchrun.

    It goes on whatever becomes of this machine; the same command again follows it, and Ctrl-C ends it. Exits with
    its exit status.
    """
    asked = errand(words)
    if dry_run:
        planned = given_spec(None, given["preset"], given["region"], given["name"])
        for rank in range(planned.count):
            click.echo("\n".join([f"# machine {rank}", *_told(planned, asked.words, rank, linger)]))
        return 0
    from istbench.aws import errands
    from istbench.aws.lifecycle import stand

    chosen = chosen_cluster(**given)
    spec = chosen.spec
    if spec is None:
        raise UserError(f"cluster {chosen.name} was not made from here: what its machines install is not known")
    cluster = stand(chosen.aws, chosen.name)
    folder = out or results_of(chosen.name)
    run = errands.start(cluster, spec, asked, folder, linger, _say)
    try:
        status = errands.follow(cluster, run)
    except KeyboardInterrupt:
        errands.stop(cluster, run, _say)
        raise
    except errands.MachineLost:
        raise
    except RunFailed:
        _say("the run goes on wherever its machines do; the same command follows it again")
        raise
    _say(
        f"ended with status {status}; the machines end themselves in {linger} minutes: `istbench aws fetch`, `down`"
    )
    if asked.saved is not None and status == 0:
        _say(f"`istbench aws fetch` brings the weights too, into {folder / asked.saved}")
    return status


@command.command("fetch")
@cluster_options
@click.option("--out", type=PathType(), metavar="DIR", help="Results directory. Default: results/aws/CLUSTER.")
def fetch_command(out: Path | None, **given: Any) -> None:
    """Bring the results of a cluster here: only what is new, also while it runs."""
    from istbench.aws.lifecycle import fetch

    chosen = chosen_cluster(**given)
    folder = out or results_of(chosen.name)
    fetch(chosen.aws, chosen.name, folder, _say)
    click.echo(str(folder))


@command.command("down")
@cluster_options
@click.option("--discard", is_flag=True, help="Delete results that were not fetched.")
def down_command(discard: bool, **given: Any) -> None:
    """End a cluster and delete all that it was made of. It can be repeated."""
    from istbench.aws.lifecycle import down

    chosen = chosen_cluster(**given, gone_is_fine=True)
    if down(chosen.aws, chosen.name, discard=discard, say=_say):
        _say(f"cluster {chosen.name} is gone from {chosen.aws.region}")
    else:
        _say(f"there is nothing of cluster {chosen.name} in {chosen.aws.region}")


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UserError("nobody is here to say whether that is all right: give --yes")
    if not click.confirm("go on?", err=True):
        raise UserError("nothing was started")


def _calls_of_up(spec: ClusterSpec, hours: float, region: str) -> list[str]:
    name = stack_name(spec.cluster)
    return [
        f"calls in {region}:",
        f"  cloudformation describe-stacks {name}",
        f"  cloudformation create-stack {name}, MaxMinutes={round(hours * 60)}, EndsAt={hours:g} h from now, "
        "capability CAPABILITY_IAM, on failure DELETE",
        f"  cloudformation describe-stacks {name}, until it is complete",
        f"  ec2 describe-instances of cluster {spec.cluster}",
        f"  ssm describe-instance-information, until {spec.count} machines are online",
    ]


def _told(spec: ClusterSpec, words: tuple[str, ...], rank: int, linger: int) -> list[str]:
    """What machine `rank` would be told, with names in capitals where AWS or the wheel has a say."""
    region, bucket = region_text(spec), "BUCKET"
    wheel = None if spec.requirement else "wheel/DIGEST/istbench-VERSION-py3-none-any.whl"
    addresses = [f"ADDRESS-OF-{rank}" for rank in range(spec.count)]
    return [
        *prepare_lines(
            spec, region=region, bucket=bucket, wheel=wheel, requirement=str(spec.requirement or "DIGEST")
        ),
        *start_lines(
            node_words(words, rank, addresses),
            rank=rank,
            region=region,
            bucket=bucket,
            run="RUN",
            linger_minutes=linger,
        ),
    ]
