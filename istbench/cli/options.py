"""Options that several commands share."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from istbench.cli.streams import Streams
from istbench.cluster.profile import ClusterProfile, load_profile
from istbench.config.defaults import BASELINE, DEFAULT_CLUSTER
from istbench.config.numbers import Levels
from istbench.config.options import parse_pairs
from istbench.config.run import RUN_OPTIONS, RunOption, RunRequest
from istbench.door import convert, literal_choices, type_at, utf8_path
from istbench.errors import UserError, printable
from istbench.lab.network import MOST_NODES, ShapedNetwork
from istbench.report.output import Format

_Command = Callable[..., Any]

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LONGEST_S = 3600.0


class PathType(click.ParamType):
    """A path whose name can be written down."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path.

        Raises:
            UserError: where it is empty or not UTF-8.
        """
        flag = param.opts[0] if param and param.opts[0].startswith("-") else param.name if param else ""
        return value if isinstance(value, Path) else utf8_path(value, flag or "path")


def _as_texts(_context: click.Context, _option: click.Parameter, paths: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(map(str, paths))


def _results_kept(context: click.Context, _option: click.Parameter, out: Path) -> Path:
    """`out`, of which the user is told where standard output cannot be written."""
    streams = context.find_object(Streams)
    if streams is not None:
        streams.results = out
    return out


def out_option(command: _Command) -> _Command:
    """`--out DIR`, the results directory."""
    return click.option(
        "--out",
        type=PathType(),
        metavar="DIR",
        default="results",
        show_default=True,
        callback=_results_kept,
        help="Results directory.",
    )(command)


def plugin_option(command: _Command) -> _Command:
    """`--plugin FILE.py`, as often as wanted."""
    return click.option(
        "--plugin",
        "plugins",
        multiple=True,
        type=PathType(),
        metavar="FILE.py",
        callback=_as_texts,
        help="Python file that defines a method or workload. May be repeated.",
    )(command)


def cluster_option(command: _Command) -> _Command:
    """`--cluster NAME|FILE.toml`, a `ClusterProfile`; a wrong one is refused before anything runs."""

    def load(_context: click.Context, _option: click.Parameter, name: str) -> ClusterProfile:
        return load_profile(name)

    return click.option(
        "--cluster",
        default=DEFAULT_CLUSTER,
        show_default=True,
        callback=load,
        metavar="NAME|FILE.toml",
        help="Cluster to say the seconds on as well, replayed; see `istbench list clusters`.",
    )(command)


def lab_nodes_option(command: _Command) -> _Command:
    """`--nodes N`, of a lab."""
    return click.option(
        "--nodes",
        type=click.IntRange(2, MOST_NODES),
        default=2,
        show_default=True,
        help="Namespaces with a worker each.",
    )(command)


def latency_option(command: _Command) -> _Command:
    """`--latency TIME`, of a lab's links."""
    return click.option(
        "--latency", default="0ms", show_default=True, help="One way between two nodes, such as 5ms."
    )(command)


def _as_levels(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    return convert(split_list(text, "--levels", "0.7,0.75 are two"), Levels, lambda _: "--levels", text=True)


def baseline_option(command: _Command) -> _Command:
    """`--baseline METHOD [NAME=VALUE ...]`, which speed-ups are against."""
    return click.option(
        "--baseline",
        default=BASELINE,
        show_default=True,
        metavar="METHOD|'METHOD NAME=VALUE ...'",
        help="What speed-ups are against: a method, or one with options, such as 'ddp lr=0.3'.",
    )(command)


_REPORT_OPTIONS: list[Callable[[_Command], _Command]] = [
    click.option(
        "--format",
        "output_format",
        type=click.Choice(literal_choices(Format)),
        default="table",
        show_default=True,
        help="Format of the tables.",
    ),
    click.option("--workload", help="Only this workload."),
    click.option("--metric", help="Another metric of the evaluations, such as top10. Default: the workload's own."),
    click.option(
        "--levels",
        callback=_as_levels,
        metavar="LEVEL,...",
        help="Of the metric, to say the seconds to, such as 0.7,0.75. Default: the workload's own.",
    ),
    baseline_option,
    click.option("--pictures/--no-pictures", default=True, help="Draw PNG and SVG into RESULTS/report."),
]


def report_options(command: _Command) -> _Command:
    """Options of commands that print a report."""
    for option in reversed(_REPORT_OPTIONS):
        command = option(command)
    return command


def parse_time(text: str, flag: str) -> float:
    """Seconds of a time such as `5ms`.

    Raises:
        UserError: where it does not parse, or is over an hour.
    """
    found = re.fullmatch(r"\s*\+?(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})\s*(us|ms|s)\s*", text.lower())
    seconds = float(found[1]) * _TIMES[found[2]] if found else math.inf
    if seconds > _LONGEST_S:
        raise UserError(
            f"{flag}: {printable(repr(text))} is not a time of at most an hour; "
            f"write a number and one of {', '.join(_TIMES)}: 5ms, 0.5s"
        )
    return seconds


def split_list(text: str, flag: str, way_out: str) -> list[str]:
    """What `text` lists, separated by commas.

    Raises:
        UserError: where that is nothing; it ends in `way_out`.
    """
    listed = [part.strip() for part in text.split(",") if part.strip()]
    if not listed:
        raise UserError(f"{flag} is empty; {way_out}")
    return listed


class _RunOptionType(click.ParamType):
    """A row of the table of a run's options: what is typed is decoded into its type, within its bounds."""

    def __init__(self, option: RunOption) -> None:
        self.name = option.metavar or "value"
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Decode what was typed; a default is as it should be.

        Raises:
            UserError: naming the flag.
        """
        return self._option.decode(value.strip(), self._option.flag, text=True) if isinstance(value, str) else value


def _run_option(option: RunOption) -> Callable[[_Command], _Command]:
    if type_at(option.kind, ()) is bool:
        return click.option(option.flag, option.name, is_flag=True, default=option.default, help=option.help)
    return click.option(
        option.flag,
        option.name,
        type=_RunOptionType(option),
        default=option.default,
        show_default=option.show_default,
        metavar=option.metavar or _metavar(option),
        help=option.help,
    )


def _metavar(option: RunOption) -> str:
    kind = type_at(option.kind, ())
    return {int: "INTEGER", float: "FLOAT"}.get(kind) or "|".join(map(str, literal_choices(kind)))


def run_options(*names: str) -> Callable[[_Command], _Command]:
    """The options of those `names` in the table of a run's options."""

    def add(command: _Command) -> _Command:
        for option in reversed(RUN_OPTIONS):
            if option.name in names:
                command = _run_option(option)(command)
        return command

    return add


def cell_options(command: _Command) -> _Command:
    """What defines a cell beside its workload, method, nodes and seed."""
    pairs = [
        click.option("--set", "method_options", multiple=True, metavar="NAME=VALUE", help="Method option."),
        click.option(
            "--workload-set", "workload_options", multiple=True, metavar="NAME=VALUE", help="Workload option."
        ),
    ]
    for option in pairs:
        command = option(command)
    return run_options(*(option.name for option in RUN_OPTIONS if option.in_suites))(command)


def typed_options(context: click.Context) -> dict[str, str]:
    """The options of the command of `context` that were typed: each one's flag, by the name of its value."""
    typed = click.core.ParameterSource.COMMANDLINE
    flags = {option.name: option.opts[0] for option in context.command.params if option.name is not None}
    return {name: flag for name, flag in flags.items() if context.get_parameter_source(name) == typed}


def lab_and_nodes(nodes: Any) -> tuple[ShapedNetwork | None, Any]:
    """The lab that the current command runs in, if any, and `--nodes`, by default all that the lab has."""
    context = click.get_current_context()
    lab = context.find_object(ShapedNetwork)
    return lab, nodes if lab is None or "nodes" in typed_options(context) else type(nodes)(lab.nodes)


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
    return msgspec.structs.replace(request, lab=lab.lab)
