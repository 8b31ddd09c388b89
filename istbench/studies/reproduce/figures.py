"""Published figures of papers and other systems: read from CSV files, and paired with our subjects."""

import csv
import io
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from istbench.base.decode import convert, read_text
from istbench.base.errors import UserError
from istbench.base.options.numbers import Duration, Level, Nodes
from istbench.base.options.options import option_text, parse_pairs
from istbench.report.baseline import same_value
from istbench.results.header import Name
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Difference, Subject

_WAY_OUT = "a line is a figure, with the columns of istbench/studies/reproduce/published/"
Row = TypeVar("Row", bound=msgspec.Struct)
Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure of a method.

    Attributes:
        paper: source of the figure. options, method_options: the options of workload and method that it holds for;
            other options may have any value. method: a name of ours, or another system.
        nodes: None if unknown. level: of the metric. note: a remark for readers.
    """

    paper: Name
    workload: Name
    method: Name
    metric: Name
    options: dict[str, str] = {}
    method_options: dict[str, str] = {}
    nodes: Nodes | None = None
    level: Level | None = None
    note: str = ""


class Figure(Published, frozen=True, kw_only=True):
    """The seconds to a level of a metric, or its final value; neither if the run failed."""

    table: ClassVar[str] = "figures.csv"
    seconds: Duration | None = None
    value: Level | None = None

    def __post_init__(self) -> None:
        if (self.level is None) != (self.seconds is None) or None not in (self.level, self.value):
            raise ValueError("needs level and seconds, or a value")

    @property
    def label(self) -> str:
        """The method with its options, as tables show it."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.method_options.items())])


class SpeedUpFigure(Published, frozen=True, kw_only=True):
    """The speed-up of a method over another, both to `level`, if the paper names one.

    Attributes:
        over, over_options: the other method. metric: `samples_per_s` for throughput, else that of `level`.
        gbit_s: bandwidth of a node's link. speedup: None if the paper gives no number.
    """

    table: ClassVar[str] = "speedups.csv"
    over: Name
    over_options: dict[str, str] = {}
    gbit_s: Positive | None = None
    speedup: Positive | None = None


Shipped = TypeVar("Shipped", Figure, SpeedUpFigure)


def published(kind: type[Shipped], sources: Container[str]) -> list[Shipped]:
    """The figures of the papers `sources` that come with istbench."""
    return [figure for figure in read_rows(PUBLISHED / kind.table, kind) if figure.paper in sources]


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of CSV file `path`, with the fields of `kind` for columns.

    Raises:
        UserError: naming the file and the line.
    """
    text = read_text(path, "a table of published figures")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        unknown = sorted(set(reader.fieldnames or ["no columns"]) - set(kind.__struct_fields__))
        if unknown:
            raise UserError(f"{path} has an unknown column {unknown[0]!r}; {_WAY_OUT}")
        return [_decoded(row, kind, f"{path}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; {_WAY_OUT}") from None


def _decoded(row: dict[str, str], kind: type[Row], where: str) -> Row:
    if None in row or None in row.values():
        raise UserError(f"{where} does not have as many columns as line 1; {_WAY_OUT}")
    given: dict[str, object] = {name: text for name, text in row.items() if text}
    for name in kind.__struct_fields__:
        if name.endswith("options"):
            given[name] = parse_pairs(row.get(name, "").split(), f"{where}: {name}")
    return convert(given, kind, lambda path: f"{where}: {'.'.join(map(str, path))}" if path else where, text=True)


def beside(figure: Published, subject: Subject, names: Mapping[str, str] | None = None) -> bool:
    """Whether `subject` trains the workload of `figure` by its method, with the options that it names.

    names: our names of other systems.
    """
    method = (names or {}).get(figure.method, figure.method)
    return _trains(figure, subject, method, figure.method_options)


def is_over(figure: SpeedUpFigure, subject: Subject) -> bool:
    """Whether `subject` trains by the method that the speed-up `figure` compares with."""
    return _trains(figure, subject, figure.over, figure.over_options)


def _trains(figure: Published, subject: Subject, method: str, options: Mapping[str, Any]) -> bool:
    request = subject.request
    return (
        (request.workload, request.method) == (figure.workload, method)
        and has(request.workload_options, figure.options)
        and has(request.method_options, options)
    )


def has(options: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether `options` have the values of `wanted`, texts or values of their type."""
    return all(
        name in options and (options[name] == value or same_value(options[name], option_text(value)))
        for name, value in wanted.items()
    )


def network_words(figure: Published) -> str:
    """The options of the workload that `figure` names."""
    return " ".join(f"{name}={value}" for name, value in figure.options.items())


def nodes_differ(figure: Published, subject: Subject) -> tuple[str, ...]:
    """The word `nodes`, if `subject` has other nodes than `figure`."""
    return ("nodes",) if figure.nodes not in (None, subject.request.nodes) else ()


def row_of(figure: Published, subject: Subject, *, aspects: tuple[str, ...] = (), **fields: Any) -> Compared:
    """The row of `figure` beside `subject`, whose other `fields` are those of `Compared`."""
    fields = {"network": network_words(figure), "planned": subject.seeds, **fields}
    return Compared(nodes=subject.request.nodes, aspects=(*aspects, *nodes_differ(figure, subject)), **fields)


def published_notes(figures: Iterable[Published]) -> Iterable[str]:
    """The remarks of published figures, each once."""
    return (f"Published: {note}." for note in dict.fromkeys(figure.note for figure in figures) if note)


def node_differences(pairs: Iterable[tuple[Published, Subject]]) -> Iterable[Difference]:
    """The difference in nodes, if there is one."""
    differing = sorted(
        {(figure.nodes, one.request.nodes) for figure, one in pairs if nodes_differ(figure, one)}, key=str
    )
    if differing:
        words = ", ".join(f"ours {ours} and theirs {theirs}" for theirs, ours in differing)
        yield Difference(aspect="nodes", text=f"numbers of nodes differ: {words}.")
