"""Options that several commands share."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from istbench.cluster.profile import ClusterProfile, load_profile
from istbench.config import RunRequest, parse_pairs
from istbench.errors import UserError
from istbench.launch.lab import ShapedNetwork

_Command = Callable[..., Any]

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def out_option(command: _Command) -> _Command:
    """`--out DIR`, the results directory."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("results"),
        show_default=True,
        help="Results directory.",
    )(command)


def plugin_option(command: _Command) -> _Command:
    """`--plugin FILE.py`, as often as wanted."""
    return click.option(
        "--plugin",
        "plugins",
        multiple=True,
        type=click.Path(),
        metavar="FILE.py",
        help="Python file that defines a method or workload. May be repeated.",
    )(command)


def cluster_option(command: _Command) -> _Command:
    """`--cluster NAME|FILE.toml`, a `ClusterProfile`; a wrong one is refused before anything runs."""

    def load(_context: click.Context, _option: click.Parameter, name: str) -> ClusterProfile:
        return load_profile(name)

    return click.option(
        "--cluster",
        default="m5.2xlarge",
        show_default=True,
        callback=load,
        metavar="NAME|FILE.toml",
        help="Cluster to say the seconds on as well, replayed; see `istbench list clusters`.",
    )(command)


_REPORT_OPTIONS = [
    click.option(
        "--format",
        "style",
        type=click.Choice(["table", "markdown", "csv", "json"]),
        default="table",
        show_default=True,
        help="How the tables are printed.",
    ),
    click.option("--workload", help="Only this workload."),
    click.option("--baseline", default="ddp", show_default=True, help="Method that speed-ups are against."),
    click.option("--pictures/--no-pictures", default=True, help="Draw PNG and SVG into RESULTS/report."),
]


def report_options(command: _Command) -> _Command:
    """What is reported, and how."""
    for option in reversed(_REPORT_OPTIONS):
        command = option(command)
    return command


def parse_time(text: str) -> float:
    """Seconds of a time such as `5ms`.

    Raises:
        UserError: where it does not parse.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s)\s*", text.lower())
    if not found:
        raise UserError(f"{text!r} is not a time; write a number and one of {', '.join(_TIMES)}: 5ms, 0.5s")
    return float(found[1]) * _TIMES[found[2]]


def words(text: str, flag: str, way_out: str) -> list[str]:
    """What `text` lists, separated by commas.

    Raises:
        UserError: where that is nothing; it ends in `way_out`.
    """
    listed = [word.strip() for word in text.split(",") if word.strip()]
    if not listed:
        raise UserError(f"{flag} is empty; {way_out}")
    return listed


_CELL_OPTIONS = [
    click.option("--batch-size", type=int, help="Samples of one node's minibatch."),
    click.option("--steps", type=int, help="Local steps a node to train for."),
    click.option("--epochs", type=float, help="Passes over the training data by all nodes together."),
    click.option("--max-seconds", type=float, help="Stop at the first evaluation after so many train seconds."),
    click.option("--target", type=float, help="Stop when the metric reaches this level, such as 0.77."),
    click.option("--eval-every", type=int, metavar="N",
                 help="Local steps between evaluations. Default: one epoch."),
    click.option("--set", "method_options", multiple=True, metavar="NAME=VALUE", help="Method option."),
    click.option("--workload-set", "workload_options", multiple=True, metavar="NAME=VALUE",
                 help="Workload option."),
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Real data in the dataset's official layout. Default: what `istbench data` left, else synthetic.",
    ),
    click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda."),
    click.option("--threads", type=int, help="Intra-op threads a node. Default: cores over nodes, at least one."),
    click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True,
                 help="Seconds after which a silent node is given up."),
    click.option("--checkpoint-every", "checkpoint_every_s", type=float, default=60.0, show_default=True,
                 help="Least seconds between two checkpoints, which follow an evaluation."),
]  # fmt: skip


def cell_options(command: _Command) -> _Command:
    """What defines a cell beside its workload, method, nodes and seed."""
    for option in reversed(_CELL_OPTIONS):
        command = option(command)
    return command


def lab_and_nodes(nodes: Any) -> tuple[ShapedNetwork | None, Any]:
    """The lab that the current command runs in, if any, and `--nodes`, by default all that the lab has."""
    context = click.get_current_context()
    lab = context.find_object(ShapedNetwork)
    typed = context.get_parameter_source("nodes") == click.core.ParameterSource.COMMANDLINE
    return lab, nodes if lab is None or typed else type(nodes)(lab.nodes)


def request_fields(given: dict[str, Any]) -> dict[str, Any]:
    """`cell_options` as fields of `RunRequest`, with the name=value texts parsed."""
    return {
        **given,
        "method_options": parse_pairs(given["method_options"], "--set"),
        "workload_options": parse_pairs(given["workload_options"], "--workload-set"),
    }


def build_request(
    workload: str,
    method: str,
    nodes: int,
    seed: int,
    plugins: tuple[str, ...],
    lab: ShapedNetwork | None,
    **given: Any,
) -> RunRequest:
    """A `RunRequest` from a command's arguments."""
    fields = request_fields(given)
    request = RunRequest(workload=workload, method=method, nodes=nodes, seed=seed, plugins=plugins, **fields)
    return in_lab(request, lab)


def in_lab(request: RunRequest, lab: ShapedNetwork | None) -> RunRequest:
    """`request` as it is run in `lab`.

    Raises:
        UserError: where it asks for other nodes than the lab has.
    """
    if lab is None:
        return request
    if request.nodes != lab.nodes:
        raise UserError(f"the lab has {lab.nodes} nodes, not {request.nodes}; give lab --nodes {request.nodes}")
    return dataclasses.replace(request, lab=dataclasses.asdict(lab.lab))
