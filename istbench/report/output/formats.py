"""A report in the format that was asked for."""

import sys
from typing import Literal, TextIO

from istbench.errors import printable
from istbench.report.output.csv_rows import tables_csv
from istbench.report.output.json_document import report_json
from istbench.report.output.markdown import table_markdown
from istbench.report.output.terminal import print_table
from istbench.report.report import Report

Style = Literal["table", "markdown", "csv", "json"]


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
        notes.write(f"left out: {printable(problem)}\n")
    for path in report.pictures:
        if path.suffix == ".png":
            notes.write(f"picture: {path} (and .svg)\n")
