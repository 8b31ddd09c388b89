"""Options that several commands share."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from istbench.base.decode import convert, literal_choices, type_at, utf8_path
from istbench.base.errors import UserError, unknown_name
from istbench.base.files import is_directory, is_there
from istbench.base.options.defaults import BASELINE, DEFAULT_CLUSTER
from istbench.base.options.numbers import Levels
from istbench.base.options.options import parse_pairs
from istbench.base.options.run import RUN_OPTIONS, RunOption, RunRequest
from istbench.cli.streams import Streams
from istbench.cluster.profile import ClusterProfile, load_profile
from istbench.launch.backends.backend import Backend, BackendOption
from istbench.launch.backends.choose import backend_options, choose
from istbench.launch.lab.network import MOST_NODES
from istbench.node.registry import check_name, load_method
from istbench.report.output import Format

_Command = Callable[..., Any]


class PathType(click.ParamType):
    """A path whose name is UTF-8 text."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path.

        Raises:
            UserError: if it is empty or not UTF-8.
        """
        flag = param.opts[0] if param and param.opts[0].startswith("-") else param.name if param else ""
        return value if isinstance(value, Path) else utf8_path(value, flag or "path")


class ResultsType(PathType):
    """A results directory. Its `runs` stands for the directory itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path.

        Raises:
            UserError: as `PathType` does.
        """
        path = super().convert(value, param, ctx)
        return path.parent if path.name == "runs" and is_directory(path) and not is_there(path / "runs") else path


class PageType(PathType):
    """The file of a page, which is written after the work."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path.

        Raises:
            UserError: if it cannot be written because of its directory, or is one.
        """
        path = super().convert(value, param, ctx)
        if is_directory(path):
            raise UserError(f"--html {path} is a directory; name a file in it")
        if not is_directory(path.parent):
            raise UserError(f"--html {path}: there is no directory {path.parent}; make it, or name another file")
        return path


def _as_texts(_context: click.Context, _option: click.Parameter, paths: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(map(str, paths))


def _results_kept(context: click.Context, _option: click.Parameter, out: Path) -> Path:
    """`out`. If standard output cannot be written, the message names this directory."""
    streams = context.find_object(Streams)
    if streams is not None:
        streams.results = out
    return out


def results_option(default: str) -> Callable[[_Command], _Command]:
    """`--out DIR`, the results directory, with a default of the command."""
    return click.option(
        "--out",
        type=PathType(),
        metavar="DIR",
        default=default,
        show_default=True,
        callback=_results_kept,
        help="Results directory.",
    )


def out_option(command: _Command) -> _Command:
    """`--out DIR`, the results directory."""
    return results_option("results")(command)


def plugin_option(command: _Command) -> _Command:
    """`--plugin FILE.py`, which may be repeated."""
    return click.option(
        "--plugin",
        "plugins",
        multiple=True,
        type=PathType(),
        metavar="FILE.py",
        callback=_as_texts,
        help="Python file that defines a method or workload. May be repeated.",
    )(command)


def _known_sinks(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        check_name("sinks", text.partition("=")[0].strip())
    return texts


def sink_option(command: _Command) -> _Command:
    """`--sink NAME[=WHERE]`, which may be repeated."""
    return click.option(
        "--sink",
        "sinks",
        multiple=True,
        metavar="NAME[=WHERE]",
        callback=_known_sinks,
        help="Also write the evaluations to this sink (see `istbench list sinks`), by default in a directory of "
        "its name in the results directory. May be repeated.",
    )(command)


def cluster_option(command: _Command) -> _Command:
    """`--cluster NAME|FILE.toml`, a `ClusterProfile`. istbench refuses a wrong one before anything runs."""

    def load(_context: click.Context, _option: click.Parameter, name: str) -> ClusterProfile:
        return load_profile(name)

    return click.option(
        "--cluster",
        default=DEFAULT_CLUSTER,
        show_default=True,
        callback=load,
        metavar="NAME|FILE.toml",
        help="Cluster on which runs are also replayed; see `istbench list clusters`.",
    )(command)


def lab_nodes_option(command: _Command) -> _Command:
    """`--nodes N`, of a lab."""
    return click.option(
        "--nodes",
        type=click.IntRange(2, MOST_NODES),
        default=2,
        show_default=True,
        help="Nodes of the lab, each in a network namespace.",
    )(command)


def latency_option(command: _Command) -> _Command:
    """`--latency TIME`, of a lab's links."""
    return click.option(
        "--latency", default="0ms", show_default=True, help="Latency of a link, one way, such as 5ms."
    )(command)


def hosts_options(command: _Command) -> _Command:
    """`--host-nodes N` and `--inside BANDWIDTH`, of a lab."""
    inside = click.option(
        "--inside",
        metavar="BANDWIDTH",
        help="Bandwidth of a node to the others of its host. Default: ten times --bandwidth.",
    )
    return click.option(
        "--host-nodes",
        type=click.IntRange(1, MOST_NODES),
        default=1,
        show_default=True,
        help="Nodes of each host. They share its link, and are near one another.",
    )(inside(command))


def racks_options(command: _Command) -> _Command:
    """`--racks N` and `--uplink BANDWIDTH`, of a lab."""
    uplink = click.option(
        "--uplink", metavar="BANDWIDTH", help="Bandwidth from each rack to the others, each way, such as 100mbit."
    )
    return click.option(
        "--racks",
        type=click.IntRange(1, MOST_NODES),
        default=1,
        show_default=True,
        help="Switches, each with as many of the hosts; with --uplink.",
    )(uplink(command))


def _as_levels(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    return convert(split_list(text, "--levels", "0.7,0.75 are two"), Levels, lambda _: "--levels", text=True)


def baseline_option(command: _Command) -> _Command:
    """`--baseline METHOD [NAME=VALUE ...]`, the row that speed-ups compare with."""
    return click.option(
        "--baseline",
        default=BASELINE,
        show_default=True,
        metavar="METHOD|'METHOD NAME=VALUE ...'",
        help="Row that speed-ups compare with: a method, or one with options, such as 'ddp lr=0.3'.",
    )(command)


def explain_option(command: _Command) -> _Command:
    """`--explain`, for tables at a terminal."""
    return click.option(
        "--explain",
        is_flag=True,
        help="Print all lines below the tables. By default only data, clock and warnings.",
    )(command)


def all_option(command: _Command) -> _Command:
    """`--all`, for the tables of a report at a terminal."""
    return click.option(
        "--all",
        "all_tables",
        is_flag=True,
        help="Print all tables. By default only the answer and one table of seconds to the target.",
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
    click.option(
        "--metric", help="Another metric of the evaluations, such as top10. Default: the metric of the workload."
    ),
    click.option(
        "--levels",
        callback=_as_levels,
        metavar="LEVEL,...",
        help="Levels of the metric, such as 0.7,0.75, or 2.1,1.9 of a loss. Default: the targets of the workload.",
    ),
    baseline_option,
    click.option("--pictures/--no-pictures", default=True, help="Draw PNG and SVG into RESULTS/report."),
    all_option,
    explain_option,
]


def report_options(command: _Command) -> _Command:
    """The options of a report."""
    for option in reversed(_REPORT_OPTIONS):
        command = option(command)
    return command


def split_list(text: str, flag: str, way_out: str) -> list[str]:
    """The parts of `text` between commas.

    Raises:
        UserError: if there is none; the message ends in `way_out`.
    """
    listed = [part.strip() for part in text.split(",") if part.strip()]
    if not listed:
        raise UserError(f"{flag} is empty; {way_out}")
    return listed


def node_counts(text: str | None) -> list[int]:
    """The numbers of nodes in the text of `--nodes`, rising; none without a text.

    Raises:
        UserError: if it has none, or one that no run can have.
    """
    if text is None:
        return []
    (option,) = (option for option in RUN_OPTIONS if option.name == "nodes")
    listed = split_list(text, "--nodes", "16,64 are two")
    return sorted({int(option.decode(number, "--nodes", text=True)) for number in listed})


class _RunOptionType(click.ParamType):
    """An option of a run. It decodes the typed text into its type, within its bounds."""

    def __init__(self, option: RunOption) -> None:
        self.name = option.metavar or "value"
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Decode typed text; a default has its type already.

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


def cell_options(command: _Command, *, without: Sequence[str] = ()) -> _Command:
    """The options that define a cell, beside its workload, method, nodes and seed, and those `without`."""
    pairs = [
        click.option("--set", "method_options", multiple=True, metavar="NAME=VALUE", help="Method option."),
        click.option(
            "--workload-set", "workload_options", multiple=True, metavar="NAME=VALUE", help="Workload option."
        ),
    ]
    for option in pairs:
        command = option(command)
    names = [option.name for option in RUN_OPTIONS if option.in_suites and option.name not in without]
    return run_options(*names)(command)


def script_methods_option(command: _Command) -> _Command:
    """`--method`, which may be repeated: the methods for a recorded script."""
    return click.option(
        "--method",
        "methods",
        multiple=True,
        metavar="METHOD,...",
        help="Methods for a recorded script, such as ddp,p3 or 'local_sgd local_steps=40'. May be repeated. "
        "Default: all whose messages follow from sizes.",
    )(command)


def refuse_typed(context: click.Context, names: Iterable[str], why: str) -> None:
    """Refuse the options `names`.

    Raises:
        UserError: if one is typed; with the reason `why`.
    """
    typed = typed_options(context)
    for name in names:
        if name in typed:
            raise UserError(f"{typed[name]} {why}; leave it out")


def typed_options(context: click.Context) -> dict[str, str]:
    """The flags of the options that the user typed, by the name of the value."""
    typed = click.core.ParameterSource.COMMANDLINE
    flags = {option.name: option.opts[0] for option in context.command.params if option.name is not None}
    return {name: flag for name, flag in flags.items() if context.get_parameter_source(name) == typed}


def places(*options: BackendOption) -> Callable[[_Command], _Command]:
    """The `options` with which a user chooses the place where cells run."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = click.option(
                option.flag,
                option.name,
                type=PathType() if option.kind is Path else option.kind,
                is_flag=True if option.kind is bool else None,
                multiple=option.multiple,
                metavar=option.metavar,
                help=option.help,
            )(command)
        return command

    return add


def place_options(command: _Command) -> _Command:
    """The options with which a user chooses the place where cells run, for all backends."""
    return places(*backend_options())(command)


def take_backend(given: dict[str, Any]) -> Backend:
    """The backend that the options of the current command choose; takes their values out of `given`.

    `--nodes` in `given` becomes the number of nodes that the backend has, unless the user typed it.

    Raises:
        UserError: as `choose` does.
    """
    context = click.get_current_context()
    values = {option.name: given.pop(option.name) for option in backend_options()}
    backend = choose(values, context.find_object(Backend))  # type: ignore[type-abstract]
    if backend.nodes is not None and "nodes" not in typed_options(context):
        given["nodes"] = type(given["nodes"])(backend.nodes)
    return backend


def request_fields(given: dict[str, Any]) -> dict[str, Any]:
    """`cell_options` as fields of `RunRequest`, with the name=value texts parsed."""
    return {
        **given,
        "method_options": parse_pairs(given["method_options"], "--set"),
        "workload_options": parse_pairs(given["workload_options"], "--workload-set"),
    }


def build_request(given: dict[str, Any]) -> RunRequest:
    """A `RunRequest` from the arguments of a command."""
    return RunRequest(**request_fields(given))


def own_options(
    method: str, methods: list[str], shared: dict[str, str], plugins: tuple[str, ...]
) -> dict[str, str]:
    """The `shared` options that `method` has.

    Raises:
        UserError: for an option that none of `methods` has.
    """
    if not shared:
        return {}
    known = {name: option_names(name, plugins) for name in methods}
    for option in shared:
        if not any(option in names for names in known.values()):
            raise unknown_name(f"option of {', '.join(methods)}", option, set().union(*known.values()))
    return {option: value for option, value in shared.items() if option in known[method]}


def option_names(method: str, plugins: tuple[str, ...]) -> set[str]:
    """The names of the options of `method`."""
    return {field.name for field in dataclasses.fields(load_method(method, plugins).Options)}
