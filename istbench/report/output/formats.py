"""Printing a report in one of its formats."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, assert_never

from istbench.errors import printable
from istbench.report.output import Format
from istbench.report.output.csv_rows import tables_csv
from istbench.report.output.json_document import report_json
from istbench.report.output.markdown import table_markdown
from istbench.report.output.terminal import print_table
from istbench.report.report import Report


def print_report(
    report: Report,
    stream: TextIO,
    *,
    output_format: Format = "table",
    pictures: Sequence[Path] = (),
    notes: TextIO | None = None,
) -> None:
    """Print the tables of `report` to `stream`, and its problems and pictures to `notes`, by default stderr.

    output_format: JSON is one object, which also has the problems and pictures. pictures: files drawn for `report`.
    """
    if output_format == "json":
        stream.write(report_json(report, pictures) + "\n")
    elif output_format == "csv":
        stream.write(tables_csv(report.tables))
    elif output_format == "markdown":
        stream.write("\n".join(table_markdown(table) for table in report.tables))
    elif output_format == "table":
        for table in report.tables:
            print_table(table, stream)
    else:
        assert_never(output_format)
    notes = notes or sys.stderr
    for problem in report.problems:
        notes.write(f"left out: {printable(problem)}\n")
    for path in pictures:
        if path.suffix == ".png":
            notes.write(f"picture: {printable(str(path))} (and .svg)\n")
