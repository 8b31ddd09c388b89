"""Options that the commands of `istbench aws` share."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from istbench.aws.spec import ClusterName, ClusterSpec, Dollars, Hours, Region, preset, read_spec
from istbench.cli.options import PathType
from istbench.door import convert
from istbench.errors import UserError, unknown_name

if TYPE_CHECKING:
    from istbench.aws.session import Aws

_Command = Callable[..., Any]


class _Decoded(click.ParamType):
    """A value of a bounded type."""

    def __init__(self, kind: Any, name: str) -> None:
        self.name = name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value.

        Raises:
            UserError: naming the flag.
        """
        flag = param.opts[0] if param else self.name
        return convert(value.strip(), self._kind, lambda _: flag, text=True) if isinstance(value, str) else value


_NAME = click.option("--name", type=_Decoded(ClusterName, "name"), help="Of the cluster. Default: as 4xm5-2xlarge.")
_REGION = click.option("--region", type=_Decoded(Region, "region"), help="Default: the spec's, else your own.")
_PRESET = click.option(
    "--preset", metavar="NAME", help="A cluster of the papers: 2x, 4x or 8x m5.2xlarge or p3.2xlarge."
)
hours_option = click.option(
    "--max-hours",
    type=_Decoded(Hours, "hours"),
    metavar="HOURS",
    help="After which the machines end themselves, whatever happens.",
)
price_option = click.option(
    "--price",
    type=_Decoded(Dollars, "USD"),
    metavar="USD",
    help="Of a machine an hour. Default: as last looked up.",
)


def spec_options(command: _Command) -> _Command:
    """What a cluster is to be: a spec or a preset, with its name and region."""
    for option in (_NAME, _REGION, _PRESET):
        command = option(command)
    return click.argument("spec", required=False, type=PathType(), metavar="[SPEC.toml]")(command)


def cluster_options(command: _Command) -> _Command:
    """Which cluster is meant."""
    for option in (_NAME, _REGION, _PRESET):
        command = option(command)
    return command


def given_spec(spec: Path | None, preset: str | None, region: str | None, name: str | None) -> ClusterSpec:
    """The spec asked for.

    Raises:
        UserError: where there is none, or two.
    """
    if (spec is None) == (preset is None):
        raise UserError("give a spec, SPEC.toml, or --preset NAME, such as 4xm5.2xlarge: one of the two")
    asked = read_spec(spec) if spec is not None else _preset(preset or "")
    changed: dict[str, Any] = {}
    if region is not None:
        if asked.zone is not None and asked.zone[:-1] != region:
            raise UserError(
                f"--region {region} has no zone {asked.zone}, which the spec names; leave one of them out"
            )
        changed["region"] = region
    elif asked.zone is not None:
        changed["region"] = Region(asked.zone[:-1])
    if name is not None:
        changed["name"] = name
    return msgspec.structs.replace(asked, **changed)


def _preset(name: str) -> ClusterSpec:
    return preset(name.strip())


def resolved_hours(given: float | None, spec: ClusterSpec) -> float:
    """`--max-hours`, else the spec's.

    Raises:
        UserError: where neither is given.
    """
    hours = given if given is not None else spec.max_hours
    if hours is None:
        raise UserError("give --max-hours: after them the machines end themselves, whatever happens")
    return hours


def region_text(spec: ClusterSpec) -> str:
    """The region as far as it is known without asking anyone."""
    return str(spec.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "REGION")


def results_of(name: str) -> Path:
    """Where a cluster's results are kept: apart from those of this machine, which did not measure the same."""
    return Path("results") / "aws" / name


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The cluster that a command is about. `spec` is None where it was not made from here."""

    name: str
    aws: "Aws"
    spec: ClusterSpec | None


def chosen_cluster(
    name: str | None, region: str | None, preset: str | None, *, gone_is_fine: bool = False
) -> Chosen:
    """The cluster of that name or preset; without either, the only one that was made from here.

    Raises:
        UserError: where there is none, or several.
    """
    from istbench.aws.local_files import recall
    from istbench.aws.session import connect

    known = recall().clusters
    if name is None and preset is not None:
        name = _preset(preset).cluster
    if name is None:
        if len(known) != 1:
            listed = f"several clusters: {', '.join(sorted(known))}" if known else "no cluster was made from here"
            raise UserError(f"{listed}; give --name, as `istbench aws status` lists them")
        (name,) = known
    cluster = known.get(name)
    if cluster is None and region is None and not gone_is_fine and known:
        raise unknown_name("cluster", name, known)
    place = region or (cluster.region if cluster else None)
    return Chosen(name=name, aws=connect(place), spec=cluster.spec if cluster else None)
