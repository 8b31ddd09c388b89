"""The output of `istbench aws status`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from istbench.aws.local_files import ClusterRecord
from istbench.aws.survey import RegionSurvey
from istbench.cli import EXIT_FAILED


def print_status(found: Sequence[RegionSurvey], records: Mapping[str, ClusterRecord], as_json: bool) -> int:
    """Print the clusters; return 1 if a resource belongs to none of them, or AWS did not list a region."""
    problems = [region for region in found if region.problem]
    for region in problems:
        click.echo(f"no answer for {region.name}: {region.problem}", err=True)
    clusters = [_as_json(region, name, records) for region in found for name in region.clusters]
    if as_json:
        click.echo(json.dumps({"regions": [region.name for region in found], "clusters": clusters}))
    else:
        for cluster in clusters:
            click.echo(_line(cluster))
            for part in cluster["left_over"]:
                click.echo(f"  left over: {part}")
            if cluster["left_over"]:
                click.echo(f"  istbench aws down --name {cluster['name']} --region {cluster['region']}")
        if not clusters:
            click.echo(f"no clusters of istbench in {len(found) - len(problems)} regions")
    return EXIT_FAILED if problems or any(cluster["left_over"] for cluster in clusters) else 0


def _as_json(region: RegionSurvey, name: str, records: Mapping[str, ClusterRecord]) -> dict[str, Any]:
    stack, known = region.stacks.get(name), records.get(name)
    machines = region.machines.get(name, [])
    ours = known if known is not None and known.region == region.name else None
    return {
        "name": name,
        "region": region.name,
        "stack": stack.status if stack else None,
        "began": stack.began.isoformat(timespec="seconds") if stack else None,
        "ends": ours.ends if ours else None,
        "machines": [
            {"id": machine.identity, "state": machine.state, "type": machine.kind} for machine in machines
        ],
        "per_hour": ours.per_hour if ours and machines else None,
        "left_over": region.left_over.get(name, []),
    }


def _line(cluster: dict[str, Any]) -> str:
    machines = cluster["machines"]
    states = sorted({machine["state"] for machine in machines})
    kinds = sorted({machine["type"] for machine in machines})
    there = f"{len(machines)} x {', '.join(kinds)} {', '.join(states)}" if machines else "no machines"
    ends = f", ends by {cluster['ends']}" if cluster["ends"] and machines else ""
    costs = f", ${cluster['per_hour']:.2f} an hour" if cluster["per_hour"] else ""
    stack = cluster["stack"] or "no stack"
    return f"{cluster['name']} in {cluster['region']}: {stack}, {there}{costs}{ends}"
