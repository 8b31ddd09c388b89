"""Read published figures of papers and other systems from a CSV file."""

import csv
import io
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from istbench.base.decode import convert, read_text
from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Duration, Level, Nodes
from istbench.base.options.options import parse_pairs
from istbench.results.header import Name

_WAY_OUT = "a line is a figure, with the columns of istbench/studies/reproduce/published/"
_Row = TypeVar("_Row", bound=msgspec.Struct)
_Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure: the seconds to a level of a metric, or its final value; neither if the run failed.

    Attributes:
        paper: source of the figure. options, method_options: the options of workload and method that it holds for;
            other options may have any value. method: a name of ours, or another system.
        nodes: None if unknown. note: a remark for readers.
    """

    paper: Name
    workload: Name
    method: Name
    metric: Name
    options: dict[str, str] = {}
    method_options: dict[str, str] = {}
    nodes: Nodes | None = None
    level: Level | None = None
    seconds: Duration | None = None
    value: Level | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The method with its options, as tables show it."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.method_options.items())])


class SpeedUpFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One published speed-up of a method over another.

    Attributes:
        paper, workload, method, options, method_options, nodes, note: as in `Figure`.
        over, over_options: the other method. metric: `samples_per_s` for throughput, else that of `level`.
        level: of the metric, to which both train; None if the paper names none. gbit_s: bandwidth of a node's link.
        speedup: None if the paper gives no number.
    """

    paper: Name
    workload: Name
    method: Name
    over: Name
    metric: Name
    options: dict[str, str] = {}
    method_options: dict[str, str] = {}
    over_options: dict[str, str] = {}
    nodes: Nodes | None = None
    level: Level | None = None
    gbit_s: _Positive | None = None
    speedup: _Positive | None = None
    note: str = ""


class GpuRate(msgspec.Struct, frozen=True, kw_only=True):
    """A public measurement of a GPU that trains.

    Attributes:
        peak_gflops: of the GPU, in single precision. step_ms: of a forward and backward pass of `batch_size`
            samples. source: where it was published, with the version.
    """

    gpu: Name
    peak_gflops: _Positive
    model: Name
    batch_size: Count
    step_ms: _Positive
    software: Name
    source: Name


def read_figures(path: Path) -> list[Figure]:
    """The figures of CSV file `path`.

    Raises:
        UserError: naming the file and the line.
    """
    figures = _read(path, Figure)
    for figure, where in figures:
        if (figure.level is None) != (figure.seconds is None) or None not in (figure.level, figure.value):
            raise UserError(f"{where} needs level and seconds, or a value; {_WAY_OUT}")
    return [figure for figure, _ in figures]


def read_speed_ups(path: Path) -> list[SpeedUpFigure]:
    """The speed-ups of CSV file `path`.

    Raises:
        UserError: naming the file and the line.
    """
    return [figure for figure, _ in _read(path, SpeedUpFigure)]


def read_gpu_rates(path: Path) -> list[GpuRate]:
    """The measurements of CSV file `path`.

    Raises:
        UserError: naming the file and the line.
    """
    return [rate for rate, _ in _read(path, GpuRate)]


def _read(path: Path, kind: type[_Row]) -> list[tuple[_Row, str]]:
    """The rows of CSV file `path`, each with its place for messages."""
    text = read_text(path, "a table of published figures")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = kind.__struct_fields__
    found = []
    try:
        unknown = sorted(set(reader.fieldnames or ["no columns"]) - set(names))
        if unknown:
            raise UserError(f"{path} has an unknown column {unknown[0]!r}; {_WAY_OUT}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            found.append((_decoded(row, kind, where), where))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; {_WAY_OUT}") from None
    return found


def _decoded(row: dict[str, str], kind: type[_Row], where: str) -> _Row:
    if None in row or None in row.values():
        raise UserError(f"{where} does not have as many columns as line 1; {_WAY_OUT}")
    given: dict[str, object] = {name: text for name, text in row.items() if text}
    for name in kind.__struct_fields__:
        if name.endswith("options"):
            given[name] = parse_pairs(row.get(name, "").split(), f"{where}: {name}")
    return convert(given, kind, lambda path: f"{where}: {'.'.join(map(str, path))}", text=True)
