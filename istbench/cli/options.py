"""Options that several commands share, and the types of their values: a command gets them decoded."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.base.decode import convert, literal_choices, type_at, utf8_path
from istbench.base.errors import UserError
from istbench.base.files import is_directory, is_there
from istbench.base.options.defaults import BASELINE, DEFAULT_CLUSTER
from istbench.base.options.numbers import Levels, Nodes, Restarts
from istbench.base.options.options import parse_pairs
from istbench.base.options.run import RUN_OPTIONS, RunOption
from istbench.base.shipped import example_results
from istbench.base.units import parse_bandwidth, parse_period, parse_time
from istbench.cli.streams import Streams
from istbench.cluster.profile import THIS, load_profile
from istbench.launch.backends.backend import Backend, BackendOption
from istbench.launch.backends.choose import backend_options, choose
from istbench.launch.lab.network import MOST_NODES
from istbench.node.registry import check_name
from istbench.report.output import Format

if TYPE_CHECKING:
    from istbench.cluster.faults import Faults

_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]


def applied(options: Iterable[_Decorator]) -> _Decorator:
    """One decorator for all `options`. Help lists them in this order."""
    listed = list(options)

    def add(command: _Command) -> _Command:
        for option in reversed(listed):
            command = option(command)
        return command

    return add


def option(
    flag: str, text: str, kind: Any = None, *, default: Any = None, shown: Any = True, name: str = "", **others: Any
) -> _Decorator:
    """The option `flag`, whose help is `text`, and its default if it has one that says something.

    kind: the type of its value; `bool` for a switch. shown: the default for help; None hides it. name: of the
    value, if it is not that of the flag. others: as in `click.option`.
    """
    if default is not None:
        others |= {"default": default, "show_default": None if default in ((), "") else shown}
    if kind is not None:
        others |= {"is_flag": True} if kind is bool else {"type": kind}
    return click.option(flag, *filter(None, [name]), help=text, **others)


class Typed(click.ParamType):
    """A typed text that `parse` decodes, from the text and the flag for its errors. Other defaults stay."""

    def __init__(self, parse: Callable[[str, str], Any], name: str = "text") -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value.

        Raises:
            UserError: naming the flag.
        """
        assert param is not None
        return self._parse(value, param.opts[0]) if isinstance(value, str) else value


BANDWIDTH, TIME = Typed(parse_bandwidth, "bandwidth"), Typed(parse_time, "time")
"""Bits/s, and seconds."""


def kind_of(kind: Any, name: str = "n") -> Typed:
    """A number within the bounds of `kind`; help calls it `name`."""
    return Typed(lambda text, flag: convert(text.strip(), kind, lambda _: flag, text=True), name)


def list_of(parse: Callable[[str, str], Any], way_out: str) -> Typed:
    """The parts of a text between commas, each decoded by `parse`."""
    return Typed(lambda text, flag: [parse(part, flag) for part in split_list(text, flag, way_out)])


def list_as(kind: Any, way_out: str) -> Typed:
    """The parts of a text between commas, as the list `kind`."""
    return Typed(lambda text, flag: convert(split_list(text, flag, way_out), kind, lambda _: flag, text=True))


METHODS = list_of(lambda name, _: name, "see `istbench list methods`")
"""Names between commas."""
json_option = option("--json", "Print one JSON object and nothing else on stdout.", bool, name="as_json")
again_option = option("--again", "Delete the results of the cells and run them again.", bool)
methods_option = option("--methods", "Methods, separated by commas.", METHODS, default="ist,local_sgd,ddp")


def _results(text: str, flag: str) -> Path:
    path = utf8_path(text, flag)
    return path.parent if path.name == "runs" and is_directory(path) and not is_there(path / "runs") else path


def _page(text: str, flag: str) -> Path:
    """The path of a page, which is written after the work: a wrong one is refused before it."""
    path = utf8_path(text, flag)
    if is_directory(path):
        raise UserError(f"{flag} {path} is a directory; name a file in it")
    if not is_directory(path.parent):
        raise UserError(f"{flag} {path}: there is no directory {path.parent}; make it, or name another file")
    return path


PATH, RESULTS, PAGE = Typed(utf8_path, "path"), Typed(_results, "path"), Typed(_page, "path")
"""A path in UTF-8; a results directory, for which its `runs` stands too; the file of a page."""


def _results_kept(context: click.Context, _option: click.Parameter, out: Path) -> Path:
    """`out`. If standard output cannot be written, the message names this directory."""
    if (streams := context.find_object(Streams)) is not None:
        streams.results = out
    return out


def results_option(default: str) -> _Decorator:
    """`--out DIR`, the results directory, with a default of the command."""
    return option("--out", "Results directory.", PATH, default=default, metavar="DIR", callback=_results_kept)


out_option = results_option("results")

plugin_option = option(
    "--plugin",
    "Python file that defines a method or workload. May be repeated.",
    Typed(lambda text, flag: str(utf8_path(text, flag))),
    name="plugins",
    multiple=True,
    metavar="FILE.py",
)


def _known_sink(text: str, _flag: str) -> str:
    check_name("sinks", text.partition("=")[0].strip())
    return text


sink_option = option(
    "--sink",
    "Also write the evaluations to this sink (see `istbench list sinks`), by default in a directory of "
    "its name in the results directory. May be repeated.",
    Typed(_known_sink),
    name="sinks",
    multiple=True,
    metavar="NAME[=WHERE]",
)

cluster_option = option(
    "--cluster",
    "Cluster on which runs are also replayed; see `istbench list clusters`.",
    Typed(lambda name, _: load_profile(name)),
    default=DEFAULT_CLUSTER,
    metavar="NAME|FILE.toml",
)
"""The profile of a cluster. istbench refuses a wrong one before anything runs."""

CLUSTER_HELP = (
    f"Default: {DEFAULT_CLUSTER}; for a recorded script `{THIS}`, machines like the one that recorded it."
)
cluster_or_this_option = option(
    "--cluster", f"Cluster of the nodes; see `istbench list clusters`. {CLUSTER_HELP}", metavar="NAME|FILE.toml"
)
"""The name of a cluster, for a command that also takes a recorded script; None if it is not typed."""


def _pairs(_context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    return parse_pairs(texts, option.opts[0])


set_option = option(
    "--set", "Method option.", name="method_options", multiple=True, metavar="NAME=VALUE", callback=_pairs
)


def workload_set_option(help_text: str = "Workload option.") -> _Decorator:
    """`--workload-set NAME=VALUE`, which may be repeated."""
    return option(
        "--workload-set", help_text, name="workload_options", multiple=True, metavar="NAME=VALUE", callback=_pairs
    )


link_options = applied(
    [
        option("--latency", "Latency of a link, one way, such as 5ms.", TIME, default="0ms"),
        option(
            "--host-nodes",
            "Nodes of each host. They share its link, and are near one another.",
            click.IntRange(1, MOST_NODES),
            default=1,
        ),
        option(
            "--inside", "Bandwidth of a node to the others of its host. Default: ten times --bandwidth.", BANDWIDTH
        ),
        option(
            "--racks",
            "Switches, each with as many of the hosts; with --uplink.",
            click.IntRange(1, MOST_NODES),
            default=1,
        ),
        option("--uplink", "Bandwidth from each rack to the others, each way, such as 100mbit.", BANDWIDTH),
    ]
)
"""The hosts, the racks and the links of a lab, beside `--bandwidth`."""

baseline_option = option(
    "--baseline",
    "Row that speed-ups compare with: a method, or one with options, such as 'ddp lr=0.3'.",
    default=BASELINE,
    metavar="METHOD|'METHOD NAME=VALUE ...'",
)

example_option = option(
    "--example",
    "Read the results that istbench brings along, of `istbench compare example`. RESULTS is then the "
    "directory for the pictures; without it, none are drawn.",
    bool,
)


def results_and_pictures(results: Path, example: bool, pictures: bool) -> tuple[Path, Path | None]:
    """The results directory to read, and the one whose `report` gets the pictures; None draws none.

    Raises:
        UserError: if the user asks for pictures of the example and names no directory.
    """
    if not example:
        return results, results if pictures else None
    typed = typed_options()
    if "results" in typed:
        return example_results(), results if pictures else None
    if pictures and "pictures" in typed:
        command = click.get_current_context().command_path
        raise UserError(f"--pictures of --example need a directory: {command} --example first")
    return example_results(), None


explain_option = option(
    "--explain", "Print all lines below the tables. By default only data, clock and warnings.", bool
)

all_option = option(
    "--all",
    "Print all tables. By default only the answer and one table of seconds to the target.",
    bool,
    name="all_tables",
)


report_options = applied(
    [
        option(
            "--format",
            "Format of the tables.",
            click.Choice(literal_choices(Format)),
            default="table",
            name="output_format",
        ),
        option("--workload", "Only this workload."),
        option(
            "--metric", "Another metric of the evaluations, such as top10. Default: the metric of the workload."
        ),
        option(
            "--levels",
            "Levels of the metric, such as 0.7,0.75, or 2.1,1.9 of a loss. Default: the targets of the workload.",
            list_as(Levels, "0.7,0.75 are two"),
            default=(),
            metavar="LEVEL,...",
        ),
        baseline_option,
        option("--pictures/--no-pictures", "Draw PNG and SVG into RESULTS/report.", default=True, shown=None),
        all_option,
        explain_option,
    ]
)


def take_shown(given: dict[str, Any]) -> dict[str, Any]:
    """The values of `report_options` for `show_report`; takes them out of `given`. The others select runs."""
    return {name: given.pop(name) for name in ("output_format", "all_tables", "explain")}


def split_list(text: str, flag: str, way_out: str) -> list[str]:
    """The parts of `text` between commas.

    Raises:
        UserError: if there is none; the message ends in `way_out`.
    """
    listed = [part.strip() for part in text.split(",") if part.strip()]
    if not listed:
        raise UserError(f"{flag} is empty; {way_out}")
    return listed


def node_counts(text: str, flag: str = "--nodes") -> list[int]:
    """The numbers of nodes in `text`, rising.

    Raises:
        UserError: if it has none, or one that no run can have.
    """
    counts: list[int] = convert(split_list(text, flag, "16,64 are two"), list[Nodes], lambda _: flag, text=True)
    return sorted(set(counts))


def _run_option(run: RunOption) -> _Decorator:
    kind = type_at(run.kind, ())
    shown = {"name": run.name, "default": run.default, "shown": run.show_default}
    if kind is bool:
        return option(run.flag, run.help, bool, **shown)
    usual = {int: "INTEGER", float: "FLOAT"}.get(kind) or "|".join(map(str, literal_choices(kind)))
    decoded = Typed(lambda text, flag: run.decode(text.strip(), flag, text=True))
    return option(run.flag, run.help, decoded, metavar=run.metavar or usual, **shown)


def run_options(*names: str, what: str = "") -> _Decorator:
    """The options of those `names` in the table of a run's options. what: a help in place of the table's."""
    return applied(
        _run_option(dataclasses.replace(option, help=what or option.help))
        for option in RUN_OPTIONS
        if option.name in names
    )


def cell_options(*, without: Sequence[str] = ()) -> _Decorator:
    """The options that define a cell, beside its workload, method, nodes and seed, and those `without`."""
    names = [option.name for option in RUN_OPTIONS if option.in_suites and option.name not in without]
    return applied([run_options(*names), workload_set_option(), set_option])


script_methods_option = option(
    "--method",
    "Methods for a recorded script, such as ddp,p3 or 'local_sgd local_steps=40'. May be repeated. "
    "Default: all whose messages follow from sizes.",
    name="methods",
    multiple=True,
    metavar="METHOD,...",
)


OF_FAULTS = ("mtbf", "restart", "checkpoint_every")
"""The names of the values of `mtbf_options`."""


mtbf_options = applied(
    [
        option(
            "--mtbf",
            "Also the seconds if each node fails once in such a time on average, as in 6h or 30d.",
            Typed(parse_period, "time"),
        ),
        option(
            "--restart",
            "From a fault until training goes on from the last checkpoint.",
            Typed(parse_period, "time"),
            default=60.0,
            shown="60s",
        ),
        option(
            "--checkpoint-every",
            "Least time between two checkpoints, which follow evaluations.",
            Typed(parse_period, "time"),
            default=60.0,
            shown="60s",
        ),
    ]
)
"""The options of simulated faults; see `take_faults`."""


def take_faults(given: dict[str, Any]) -> "Faults | None":
    """The faults of `mtbf_options`; takes their values out of `given`. None without `mtbf`.

    Raises:
        UserError: if another one is typed without `mtbf`.
    """
    mtbf, restart, checkpoint_every = (given.pop(name) for name in OF_FAULTS)
    if mtbf is None:
        refuse_typed(OF_FAULTS[1:], "is for the faults of --mtbf")
        return None
    from istbench.cluster.faults import Faults  # numpy, which --help does not need

    return Faults(mtbf_s=mtbf, restart_s=restart, checkpoint_s=checkpoint_every)


def refuse_typed(names: Iterable[str], why: str) -> None:
    """Refuse the options `names` of the current command.

    Raises:
        UserError: if one is typed; with the reason `why`.
    """
    typed = typed_options()
    for name in names:
        if name in typed:
            raise UserError(f"{typed[name]} {why}; leave it out")


def typed_options() -> dict[str, str]:
    """The flags of the options that the user typed after the current command, by the name of the value."""
    context, typed = click.get_current_context(), click.core.ParameterSource.COMMANDLINE
    flags = {option.name: option.opts[0] for option in context.command.params if option.name is not None}
    return {name: flag for name, flag in flags.items() if context.get_parameter_source(name) == typed}


def places(*options: BackendOption) -> _Decorator:
    """The `options` with which a user chooses the place where cells run."""
    return applied(
        option(
            own.flag,
            own.help,
            PATH if own.kind is Path else own.kind,
            name=own.name,
            multiple=own.multiple,
            metavar=own.metavar,
        )
        for own in options
    )


def place_options(command: _Command) -> _Command:
    """The options with which a user chooses the place where cells run, for all backends, and `--restarts`."""
    restarts = option(
        "--restarts",
        "After a worker, a host or a link is lost, go on from the last checkpoint, up to N times. "
        "Default: 0 in `run`, 1 in commands that train many cells.",
        kind_of(Restarts),
    )
    return places(*backend_options())(restarts(command))


def take_backend(given: dict[str, Any], restarts: int = 1) -> Backend:
    """The backend that the options of the current command choose; takes their values out of `given`.

    `--nodes` in `given` becomes the number of nodes that the backend has, unless the user typed it. `restarts` is
    the default of `--restarts`.

    Raises:
        UserError: as `choose` and `Backend.restarting` do.
    """
    values = {option.name: given.pop(option.name) for option in backend_options()}
    asked = given.pop("restarts")
    around = click.get_current_context().find_object(Backend)  # type: ignore[type-abstract]
    backend = choose(values, around)
    backend = backend.restarting(restarts if asked is None else asked, typed=asked is not None)
    if backend.nodes is not None and "nodes" not in typed_options():
        given["nodes"] = type(given["nodes"])(backend.nodes)
    return backend


SECTIONS = {
    "What to train": (
        "method", "methods", "workload", "nodes", "seed", "seeds", "controls", "method_options", "workload_options",
        "batch_size", "plugins", "trials", "ranges",
    ),
    "How long, and judged by what": (
        "steps", "epochs", "max_seconds", "target", "eval_every", "held_out", "tuned",
    ),
    "Data and computing": (
        "data", "device", "threads", "shares", "amp", "channels_last", "compile", "timeout_s", "checkpoint_every_s",
        "restarts", "elastic", "anyway",
    ),
    "Other machines": (
        "hosts", "hosts_python", "ssh_config", "install", "spare", "detach", "stop", "slurm",
    ),
}  # fmt: skip
"""Options by name. All others belong to the results."""
_REST = "Results"


class SectionedCommand(click.Command):
    """A command whose help has its options in `SECTIONS`, in their order."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each section that has options of this command."""
        for name, options in sections(self.get_params(ctx)).items():
            with formatter.section(name):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])


def sections(params: Iterable[click.Parameter]) -> dict[str, list[click.Option]]:
    """The shown options among `params` by section, in the order of `SECTIONS`. No section is empty."""
    place = {option: name for name, options in SECTIONS.items() for option in options}
    order = {option: number for number, option in enumerate(place)}
    shown = [option for option in params if isinstance(option, click.Option) and not option.hidden]
    found: dict[str, list[click.Option]] = {name: [] for name in (*SECTIONS, _REST)}
    for option in sorted(shown, key=lambda option: order.get(option.name or "", len(order))):
        found[place.get(option.name or "", _REST)].append(option)
    return {name: options for name, options in found.items() if options}
