"""Tables in markdown."""

import re
from collections.abc import Iterable

from istbench.errors import printable
from istbench.report.tables.table import Table


def table_markdown(table: Table) -> str:
    """`table` as markdown, with nothing in it that markdown or HTML would act on."""
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
