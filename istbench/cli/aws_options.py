"""Options of the `istbench aws` commands."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from istbench.aws.spec import ClusterName, ClusterSpec, Dollars, Hours, RegionName, preset, read_spec
from istbench.base.decode import convert
from istbench.base.errors import UserError
from istbench.cli.options import PathType

if TYPE_CHECKING:
    from istbench.aws.session import Aws

_Command = Callable[..., Any]


class _Decoded(click.ParamType):
    """A value of a type with bounds."""

    def __init__(self, kind: Any, name: str) -> None:
        self.name = name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Decode the value.

        Raises:
            UserError: with the flag.
        """
        flag = param.opts[0] if param else self.name
        return convert(value.strip(), self._kind, lambda _: flag, text=True) if isinstance(value, str) else value


_NAME = click.option(
    "--name",
    type=_Decoded(ClusterName, "name"),
    help="Name of the cluster. Default: count and type, such as 4xm5-2xlarge.",
)
_REGION = click.option(
    "--region", type=_Decoded(RegionName, "region"), help="Region. Default: the one in the spec, else your default."
)
_PRESET = click.option(
    "--preset", metavar="NAME", help="Cluster of the papers: 2x, 4x or 8x m5.2xlarge or p3.2xlarge."
)
hours_option = click.option(
    "--max-hours",
    type=_Decoded(Hours, "hours"),
    metavar="HOURS",
    help="The machines end themselves after so many hours, whatever happens.",
)
price_option = click.option(
    "--price",
    type=_Decoded(Dollars, "USD"),
    metavar="USD",
    help="Price of a machine an hour. Default: the one of its cluster profile.",
)
ssm_option = click.option(
    "--ssm", is_flag=True, help="Reach the machines through Session Manager; no address may connect to them."
)


def spec_options(command: _Command) -> _Command:
    """Options that define a cluster: a spec or a preset, with a name and a region."""
    for option in (_NAME, _REGION, _PRESET):
        command = option(command)
    return click.argument("spec", required=False, type=PathType(), metavar="[SPEC.toml]")(command)


def cluster_options(command: _Command) -> _Command:
    """Options that choose an existing cluster."""
    for option in (_NAME, _REGION, _PRESET):
        command = option(command)
    return command


def given_spec(spec: Path | None, preset: str | None, region: str | None, name: str | None) -> ClusterSpec:
    """The spec of the command line.

    Raises:
        UserError: if there is none, or two.
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
        changed["region"] = RegionName(asked.zone[:-1])
    if name is not None:
        changed["name"] = name
    return msgspec.structs.replace(asked, **changed)


def _preset(name: str) -> ClusterSpec:
    return preset(name.strip())


def resolved_hours(given: float | None, spec: ClusterSpec) -> float:
    """`--max-hours`, else the spec's.

    Raises:
        UserError: if neither is given.
    """
    hours = given if given is not None else spec.max_hours
    if hours is None:
        raise UserError("give --max-hours: the machines end themselves after so many hours, whatever happens")
    return hours


def region_text(spec: ClusterSpec) -> str:
    """The region as far as it is known without a call to AWS."""
    return str(spec.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "REGION")


def chosen_cluster(name: str | None, region: str | None, preset: str | None) -> tuple[str, "Aws"]:
    """The name of the given cluster, and AWS in its region; by default the only cluster that this computer created.

    Raises:
        UserError: if there is none, or several.
    """
    from istbench.aws.local_files import records
    from istbench.aws.session import connect

    known = records()
    if name is None and preset is not None:
        name = _preset(preset).cluster
    if name is None:
        if len(known) != 1:
            listed = (
                f"several clusters: {', '.join(sorted(known))}" if known else "this computer created no cluster"
            )
            raise UserError(f"{listed}; give --name, `istbench aws status` lists the names")
        (name,) = known
    cluster = known.get(name)
    return name, connect(region or (cluster.region if cluster else None))
