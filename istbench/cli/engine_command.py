"""`istbench engine`: a command of istbench as a file for an engine that starts machines."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import msgspec
from click.core import ParameterSource

from istbench import __version__
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.numbers import Nodes
from istbench.cli import cli
from istbench.cli.options import kind_of, option, refuse_typed
from istbench.cluster.profile import load_profile, names
from istbench.launch.engines import kubeflow, parallelcluster, skypilot, slurm
from istbench.launch.engines.job import EngineJob

_ENGINES: dict[str, Callable[[EngineJob], str]] = {
    "kubeflow": kubeflow.file_of,
    "parallelcluster": parallelcluster.file_of,
    "skypilot": skypilot.file_of,
    "slurm": slurm.file_of,
}
_MACHINES = [name for name in names() if "." in name]
"""Profiles that are called as a type of machine of AWS."""
_Hours = Annotated[float, msgspec.Meta(ge=0.05, le=240.0)]

_COMMANDS = ("run", "compare", "tune", "reproduce", "advise")


@click.command("engine", no_args_is_help=True)
@click.argument("engine", metavar="|".join(_ENGINES))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@option("--nodes", "Number of machines; each is a node.", kind_of(Nodes), required=True)
@option("--machine", f"Type of the machines: {', '.join(_MACHINES)}.", default=DEFAULT_CLUSTER)
@option("--hours", "The run ends after so many hours.", kind_of(_Hours, "hours"), default="2")
@option(
    "--results",
    "Place of the results: a bucket (skypilot), a PersistentVolumeClaim (kubeflow), or a directory that all "
    "nodes share (slurm, parallelcluster).",
    metavar="PLACE",
)
@option(
    "--install",
    "Where istbench comes from: a wheel, which `pip wheel --no-deps --wheel-dir dist .` makes of a checkout, "
    "or a requirement of pip, such as git+https://...",
    default=f"dist/istbench-{__version__}-py3-none-any.whl",
    metavar="WHEEL|ADDRESS|NAME",
)
@option(
    "--image",
    "Image of a container with istbench, such as that of docs/container.md; nothing is installed then. "
    "Default: the machines themselves, where --install installs it.",
)
@option("--name", "Name of the job.", default="istbench")
def command(engine: str, words: tuple[str, ...], nodes: int, machine: str, name: str, **given: Any) -> None:
    """Print the file with which an engine runs a command of istbench on machines that it starts.

    \b
    istbench engine skypilot --nodes 8 --machine m5.2xlarge -- compare SUITE.toml > task.yaml
    istbench engine slurm --nodes 4 -- run --method ist --workload speech > job.sh

    The file installs istbench, runs torchrun on every node and ends by itself. It carries the suites and Python
    files of the command. istbench starts nothing itself.
    """
    if engine not in _ENGINES:
        raise unknown_name("engine", engine, _ENGINES)
    if machine not in _MACHINES:
        raise unknown_name("machine", machine, _MACHINES)
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", name):
        raise UserError(f"--name {shown(name)} is not 1 to 30 lower-case letters, digits and hyphens")
    if given["image"] is not None:
        refuse_typed(["install"], "is for machines without --image")
    _check(words, nodes)
    job = EngineJob(name=name, nodes=nodes, machine=load_profile(machine), words=words, **given)
    click.echo(_ENGINES[engine](job), nl=False)


def _check(words: Sequence[str], nodes: int) -> None:
    """Refuse a command that the machines would refuse."""
    if not words:
        raise UserError("give the command of istbench after --, such as: -- run --method ist --workload speech")
    context = click.Context(cli, info_name="istbench")
    found = cli.get_command(context, words[0])
    if found is None:
        raise unknown_name("command", words[0], cli.list_commands(context))
    if words[0] not in _COMMANDS:
        raise UserError(f"istbench {words[0]} does not train under torchrun; give one of {', '.join(_COMMANDS)}")
    inner = found.make_context(words[0], list(words[1:]), parent=context)
    for name in ("hosts", "slurm", "restarts", "elastic"):
        if inner.params.get(name) and inner.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"leave out --{name}: the machines of an engine run torchrun, which starts the nodes")
    if words[0] == "advise" and not inner.params["measure"]:
        raise UserError("advise without --measure trains on one machine: run it here, or add --measure")
    if inner.get_parameter_source("out") is ParameterSource.COMMANDLINE:
        raise UserError("leave out --out: --results, before --, names the place of the results")
    if inner.params.get("write") is not None:
        raise UserError(
            "leave out --write: its file would be lost with the machine; write it here, from the results"
        )
    given = inner.params.get("nodes")
    if words[0] == "run" and inner.get_parameter_source("nodes") is ParameterSource.COMMANDLINE and given != nodes:
        raise UserError(f"run has --nodes {given} on {nodes} machines; leave it out, each machine is a node")
