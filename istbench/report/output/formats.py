"""A report as text for a terminal, markdown, CSV or JSON."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, assert_never

from istbench.base.csv_text import csv_text
from istbench.base.errors import printable
from istbench.report.output import Format
from istbench.report.output.terminal import print_tables
from istbench.report.report import Report
from istbench.report.tables.table import Column, Scalar, Table


def print_report(
    report: Report,
    stream: TextIO,
    *,
    pictures: Sequence[Path] = (),
    notes: TextIO | None = None,
    **shown: Any,
) -> None:
    """Print the answers and tables of `report` to `stream`, the rest to `notes` (stderr by default).

    pictures: paths of the drawn plots of `report`. shown: the other arguments of `print_results`.
    """
    print_results(report, stream, pictures=pictures, **shown)
    print_notes(report, notes or sys.stderr, pictures=pictures)


def print_results(
    report: Report,
    stream: TextIO,
    *,
    output_format: Format = "table",
    pictures: Sequence[Path] = (),
    page: Path | None = None,
    explain: bool = True,
    brief: bool = False,
    all_tables: bool = False,
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Print the answers and tables of `report` to `stream`.

    output_format: `json` is one object, which holds the problems, `pictures`, `page` and `fields` too.
    explain, brief: as in `print_tables`. all_tables: print all tables at a terminal, too. Other formats have all,
    with whole footers.
    """
    if output_format == "json":
        stream.write(report_json(report, pictures, page, fields) + "\n")
    elif output_format == "csv":
        stream.write(tables_csv(report.tables))
    elif output_format == "markdown":
        answers = [f"{_markdown(line)}\n" for line in report.answers]
        stream.write("\n".join([*answers, *(table_markdown(table) for table in report.tables)]))
    elif output_format == "table":
        others = [table for table in report.tables if table not in report.overview]
        shown = [*report.overview, *(others if all_tables or not report.overview else ())]
        hidden = len(report.overview) + len(others) - len(shown)
        print_tables(shown, stream, answers=report.answers, explain=explain, brief=brief, hidden=hidden)
    else:
        assert_never(output_format)


def print_notes(report: Report, notes: TextIO, *, pictures: Sequence[Path] = (), page: Path | None = None) -> None:
    """Say in `notes` what `report` left out, and where its drawn plots and its page are."""
    for line in left_out(report):
        notes.write(f"{line}\n")
    for path in pictures:
        if path.suffix == ".png":
            notes.write(f"picture: {printable(str(path))} (and .svg)\n")
    if page is not None:
        notes.write(f"page: {printable(str(page))}\n")


def left_out(report: Report) -> list[str]:
    """A line for each problem of `report`."""
    return [f"left out: {printable(problem)}" for problem in report.problems]


def table_markdown(table: Table) -> str:
    """`table` in markdown, with every special character of markdown and HTML escaped."""
    lines = [f"### {_markdown(table.title)}", ""]
    if table.rows:
        lines.append(_markdown_row(column.title for column in table.columns))
        lines.append("| " + " | ".join("---:" if c.align == "right" else ":---" for c in table.columns) + " |")
        lines += [_markdown_row(entry.text for entry in row) for row in table.rows]
    else:
        lines.append(_markdown(table.empty))
    lines += ["", *(f"- {_markdown(line)}" for line in table.footer), ""]
    return "\n".join(lines)


def _markdown_row(entries: Iterable[str]) -> str:
    return "| " + " | ".join(_markdown(entry) for entry in entries) + " |"


def _markdown(text: str) -> str:
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", escaped)


def tables_csv(tables: Iterable[Table]) -> str:
    """All rows of `tables` as one CSV with a header line; missing values are empty.

    The first columns are the context of the table, the others belong to the row. An entry of several values has a
    column for each, such as `train_s_to_0.77_median`. Rows of two tables about the same thing share a line.
    """
    lines: dict[object, dict[str, Scalar]] = {}
    for table in tables:
        seen = Counter[object]()  # a table may have several rows about the same thing
        for row in table.rows:
            values = [entry.value for entry in row]
            keys = (*table.context.items(), *values[: table.keys])
            about = (keys, seen[keys]) if table.keys else len(lines)
            seen[keys] += 1
            lines.setdefault(about, dict(table.context)).update(_flat(table.columns, values))
    return csv_text(lines.values())


def _flat(columns: Sequence[Column], values: Sequence[Scalar | Mapping[str, Scalar]]) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for column, value in zip(columns, values, strict=True):
        if isinstance(value, Mapping):
            flat.update({f"{column.key}_{name}": part for name, part in value.items()})
        elif value is not None:
            flat[column.key] = value
    return flat


def table_json(table: Table) -> dict[str, Any]:
    """`table` for JSON: its context, and its rows as {column key: value}; missing values are null."""
    keys = [column.key for column in table.columns]
    return {
        "title": table.title,
        "context": dict(table.context),
        "rows": [dict(zip(keys, (entry.value for entry in row), strict=True)) for row in table.rows],
        "notes": list(table.footer),
    }


def report_json(
    report: Report,
    pictures: Iterable[Path] = (),
    page: Path | None = None,
    fields: Mapping[str, Any] | None = None,
) -> str:
    """`report`, paths of its `pictures` and `page`, and `fields`, as one JSON object."""
    return json.dumps(
        {
            **(fields or {}),
            "answers": list(report.answers),
            "tables": [table_json(table) for table in report.tables],
            "problems": list(report.problems),
            "pictures": [str(path) for path in pictures],
            "page": None if page is None else str(page),
        },
        indent=1,
        allow_nan=False,
    )
