"""Read published figures of papers and other systems from a CSV file."""

import csv
import io
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from istbench.base.decode import convert, read_text
from istbench.base.errors import UserError
from istbench.base.options.numbers import Duration, Level, Nodes
from istbench.base.options.options import parse_pairs
from istbench.results.header import Name

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

    over: Name
    over_options: dict[str, str] = {}
    gbit_s: Positive | None = None
    speedup: Positive | None = None


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
