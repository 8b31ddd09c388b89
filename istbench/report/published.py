"""Read published figures of papers and other systems from a CSV file."""

import csv
import io
from pathlib import Path

import msgspec

from istbench.config.numbers import Duration, Level, Nodes
from istbench.config.options import option_text, parse_pairs
from istbench.door import convert, read_text
from istbench.errors import UserError
from istbench.report.groups import Contender, Group
from istbench.results.header import Name

_WAY_OUT = "a line is a figure, with the columns of results/published/figures.csv"


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

    def is_of(self, group: Group) -> bool:
        """Whether the runs of `group` have the workload and options of this figure."""
        runs = [run for contender in group.contenders for run in contender.runs]
        return self.workload == group.workload and all(
            _has(run.header.config.workload_options, self.options) for run in runs
        )

    def is_like(self, contender: Contender) -> bool:
        """Whether `contender` has the same method and options, on as many nodes if they are known."""
        return (
            contender.method == self.method
            and self.nodes in (None, contender.nodes)
            and all(_has(run.header.config.method_options, self.method_options) for run in contender.runs)
        )


def read_figures(path: Path) -> list[Figure]:
    """The figures of CSV file `path`.

    Raises:
        UserError: naming the file and the line.
    """
    text = read_text(path, "a table of published figures")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = Figure.__struct_fields__
    try:
        unknown = sorted(set(reader.fieldnames or ["no columns"]) - set(names))
        if unknown:
            raise UserError(f"{path} has an unknown column {unknown[0]!r}; {_WAY_OUT}")
        return [_figure(row, f"{path}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; {_WAY_OUT}") from None


def _figure(row: dict[str, str], where: str) -> Figure:
    if None in row or None in row.values():
        raise UserError(f"{where} does not have as many columns as line 1; {_WAY_OUT}")
    given: dict[str, object] = {name: text for name, text in row.items() if text}
    for name in ("options", "method_options"):
        given[name] = parse_pairs(row.get(name, "").split(), f"{where}: {name}")
    figure = convert(given, Figure, lambda path: f"{where}: {'.'.join(map(str, path))}", text=True)
    if (figure.level is None) != (figure.seconds is None) or None not in (figure.level, figure.value):
        raise UserError(f"{where} needs level and seconds, or a value; {_WAY_OUT}")
    return figure


def _has(options: dict[str, object], wanted: dict[str, str]) -> bool:
    return all(name in options and option_text(options[name]) == value for name, value in wanted.items())
