"""Tables as text: for a terminal, as markdown, CSV and JSON."""

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TextIO

from istbench.report.build import Report
from istbench.report.table import Column, Scalar, Table

Style = Literal["table", "markdown", "csv", "json"]
_GAP, _EDGES = 3, 2
_WIDEST_KEY = 32


def print_report(report: Report, stream: TextIO, *, style: str = "table", notes: TextIO | None = None) -> None:
    """Print the tables of `report` to `stream` in `style`, and what else there is to say to `notes` (stderr).

    style: table, markdown, csv or json. JSON is one object that holds the problems and pictures too.
    """
    if style == "json":
        stream.write(report_json(report) + "\n")
    elif style == "csv":
        stream.write(tables_csv(report.tables))
    elif style == "markdown":
        stream.write("\n".join(table_markdown(table) for table in report.tables))
    else:
        for table in report.tables:
            print_table(table, stream)
    notes = notes or sys.stderr
    for problem in report.problems:
        notes.write(f"left out: {_printable(problem)}\n")
    for path in report.pictures:
        if path.suffix == ".png":
            notes.write(f"picture: {path} (and .svg)\n")


def print_table(table: Table, stream: TextIO, *, width: int | None = None) -> None:
    """Print `table` for a reader, in `width` characters, those of the terminal by default.

    Where it is too wide, its columns are printed in several blocks, each with the columns that name the row.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawing
    from rich.text import Text

    width = width or shutil.get_terminal_size((120, 24)).columns
    console = Console(file=stream, width=width, highlight=False, markup=False)
    console.print(Text(_printable(table.title), style="bold"))
    for block in _blocks(table, width):
        columns = [table.columns[index] for index in block]
        drawing = Drawing(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(column.title for column in columns))
        for column, characters in zip(columns, _widths(table, block, width), strict=True):
            drawing.add_column(Text(column.title), justify=column.align, overflow="fold", width=characters)
        for row in table.rows:
            drawing.add_row(*(Text(_printable(row[index].text)) for index in block))
        if table.rows:
            console.print(drawing)
        else:
            console.print(Text(table.empty))
            break
    for line in table.footer:
        console.print(Text(_printable(line), style="dim"))
    console.print()


def table_markdown(table: Table) -> str:
    """`table` as markdown, with nothing in it that markdown or HTML would act on."""
    lines = [f"### {_markdown(table.title)}", ""]
    if table.rows:
        lines.append(_markdown_row(column.title for column in table.columns))
        lines.append("| " + " | ".join("---:" if c.align == "right" else ":---" for c in table.columns) + " |")
        lines += [_markdown_row(cell.text for cell in row) for row in table.rows]
    else:
        lines.append(_markdown(table.empty))
    lines += ["", *(f"- {_markdown(line)}" for line in table.footer), ""]
    return "\n".join(lines)


def tables_csv(tables: Iterable[Table]) -> str:
    """All rows of `tables` as one CSV with a header line: numbers, empty for what there is not.

    The first columns say what holds for the row's table, the others are its own; a cell of several values is
    as many columns, such as `train_s_to_0.77_median`. Rows that are about the same thing are one line.
    """
    lines: dict[object, dict[str, Scalar]] = {}
    for table in tables:
        for row in table.rows:
            values = [cell.value for cell in row]
            about = (*table.context.items(), *values[: table.keys]) if table.keys else len(lines)
            lines.setdefault(about, dict(table.context)).update(_flat(table.columns, values))
    records = list(lines.values())
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def table_json(table: Table) -> dict[str, Any]:
    """`table` JSON-ready: its context, and its rows as {column key: value}, null for what there is not."""
    keys = [column.key for column in table.columns]
    return {
        "title": table.title,
        "context": dict(table.context),
        "rows": [dict(zip(keys, (cell.value for cell in row), strict=True)) for row in table.rows],
        "notes": list(table.footer),
    }


def report_json(report: Report) -> str:
    """The whole of `report` as one JSON object."""
    return json.dumps(
        {
            "tables": [table_json(table) for table in report.tables],
            "problems": list(report.problems),
            "pictures": [str(path) for path in report.pictures],
        },
        indent=1,
        allow_nan=False,
    )


def _flat(columns: Sequence[Column], values: Sequence[Scalar | Mapping[str, Scalar]]) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for column, value in zip(columns, values, strict=True):
        if isinstance(value, Mapping):
            flat.update({f"{column.key}_{name}": part for name, part in value.items()})
        elif value is not None:
            flat[column.key] = value
    return flat


def _blocks(table: Table, width: int) -> list[list[int]]:
    """The columns of each block that fits in `width`, the naming ones first in every block."""
    widths = _least_widths(table, range(len(table.columns)))
    keys = list(range(table.keys))
    used_by_keys = _EDGES + sum(widths[index] + _GAP for index in keys)
    blocks, used = [keys[:]], used_by_keys
    for index in range(table.keys, len(table.columns)):
        if used + widths[index] > width and len(blocks[-1]) > len(keys):
            blocks.append(keys[:])
            used = used_by_keys
        blocks[-1].append(index)
        used += widths[index] + _GAP
    return blocks


def _widths(table: Table, columns: Sequence[int], width: int) -> list[int]:
    """Characters of each of the columns of a block: the least, and what the titles can use of the rest."""
    widths = _least_widths(table, columns)
    room = width - _EDGES - sum(widths) - _GAP * (len(widths) - 1)
    for place, index in enumerate(columns):
        more = max(0, min(room, len(table.columns[index].title) - widths[place]))
        widths[place] += more
        room -= more
    return widths


def _least_widths(table: Table, columns: Iterable[int]) -> list[int]:
    """Characters that each column needs: its longest text, folded if it names the row, or title word."""
    least = []
    for index in columns:
        words = [len(word) for word in table.columns[index].title.split()]
        texts = [len(row[index].text) for row in table.rows]
        needed = max(texts, default=1)
        least.append(max([1, min(needed, _WIDEST_KEY) if index < table.keys else needed, *words]))
    return least


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_markdown(cell) for cell in cells) + " |"


def _markdown(text: str) -> str:
    escaped = _printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", escaped)


def _printable(text: str) -> str:
    """Without line breaks, escape sequences and the like, which a terminal would act on."""
    return "".join(character if character.isprintable() else "?" for character in text)
