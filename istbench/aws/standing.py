"""A cluster that stands already when it is asked for again: it is what it was made as, and ends when it was to."""

from dataclasses import dataclass
from typing import Any

from istbench.aws.local_files import Remembered, recall
from istbench.aws.session import Aws
from istbench.aws.spec import ClusterSpec
from istbench.aws.stack import Stack, find_stack
from istbench.errors import RunFailed, UserError

# Looked at apart, or of no consequence for the machines.
_NOT_COMPARED = {"name", "region", "max_hours", "price_per_hour"}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A cluster that stands or is being made, and what it was made as, from here."""

    stack: Stack
    made: Remembered


def standing(aws: Aws, spec: ClusterSpec) -> Standing | None:
    """The cluster that `spec` asks for, where it is there already; else None.

    Raises:
        UserError: where there is another of that name: in another region, not made from here, or from another spec,
            naming what differs.
        RunFailed: where remains of an earlier one are in the way.
    """
    name = spec.cluster
    made = recall().clusters.get(name)
    if made is not None and made.region != aws.region:
        raise UserError(f"cluster {name} is in {made.region}: take it down first, or give this one another --name")
    stack = find_stack(aws, name)
    if stack is None:
        return None
    if stack.status not in ("CREATE_IN_PROGRESS", "CREATE_COMPLETE"):
        raise RunFailed(
            f"cluster {name} in {aws.region} is {stack.status}: run `istbench aws down --name {name}` first"
        )
    if made is None or not made.ends.startswith(stack.ends):
        ends = f", and ends by {stack.ends} UTC" if stack.ends else ""
        raise UserError(
            f"a cluster {name} is in {aws.region}{ends}; it was not made from here: "
            f"`istbench aws down --name {name} --region {aws.region}` first, or give this one another --name"
        )
    differing = _differing(made.spec, spec)
    if differing:
        raise UserError(
            f"cluster {name} stands already, and {'; '.join(differing)}: `istbench aws down --name {name}` first, "
            "or give this one another --name"
        )
    return Standing(stack=stack, made=made)


def standing_lines(there: Standing, region: str, asked_hours: float) -> list[str]:
    """What stands, until when, and the cost, for readers; `asked_hours` are those that are asked for now."""
    made, spec = there.made, there.made.spec
    hours = (
        f"; --max-hours {asked_hours:g} changes nothing, only `down` and `up` do"
        if asked_hours != made.max_hours
        else ""
    )
    return [
        f"cluster {spec.cluster} is there already in {region}, as it was made: {spec.count} x "
        f"{spec.instance_type}, ${made.per_hour:.2f} an hour with disks and addresses (estimate)",
        f"the machines end themselves by {made.ends}, {made.max_hours:g} h after they were asked for{hours}",
        f"at most ${made.per_hour * made.max_hours:.2f} in all, without taxes and without what is downloaded",
    ]


def _differing(made: ClusterSpec, asked: ClusterSpec) -> list[str]:
    """What differs between two specs, a line for each field."""
    fields = [field for field in made.__struct_fields__ if field not in _NOT_COMPARED]
    pairs = [(field, getattr(made, field), getattr(asked, field)) for field in fields]
    return [f"its {field} {_difference(there, here)}" for field, there, here in pairs if there != here]


def _difference(made: Any, asked: Any) -> str:
    if isinstance(made, list):
        return "is another"
    return f"is {_text(made)}, not {_text(asked)}"


def _text(value: Any) -> str:
    return "not given" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
