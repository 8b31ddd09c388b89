"""Tables, and a whole report, as JSON."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from istbench.report.report import Report
from istbench.report.tables.table import Table


def table_json(table: Table) -> dict[str, Any]:
    """`table` JSON-ready: its context, and its rows as {column key: value}, null for what there is not."""
    keys = [column.key for column in table.columns]
    return {
        "title": table.title,
        "context": dict(table.context),
        "rows": [dict(zip(keys, (entry.value for entry in row), strict=True)) for row in table.rows],
        "notes": list(table.footer),
    }


def report_json(report: Report, pictures: Iterable[Path] = ()) -> str:
    """The tables and problems of `report` and the `pictures` drawn of it, as one JSON object."""
    return json.dumps(
        {
            "tables": [table_json(table) for table in report.tables],
            "problems": list(report.problems),
            "pictures": [str(path) for path in pictures],
        },
        indent=1,
        allow_nan=False,
    )
