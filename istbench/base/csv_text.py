"""CSV that a spreadsheet opens without computing anything."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from istbench.base.errors import printable

# JavaScript reads both expressions too: pages copy their tables by the same rule.
NUMBER = r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?"
# The wide signs are formulas to spreadsheets in Chinese and Japanese. In some countries `;` parts the cells.
FORMULA = r"(^|;)(\s*[=+\-@\uff1d\uff0b\uff0d\uff20])"


def csv_text(rows: Iterable[Mapping[Any, object]], float_format: str = "") -> str:
    """`rows` as CSV with a header line; missing values and those that are no number are empty.

    A text becomes printable, and begins with a quote where a spreadsheet would compute it.
    """
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_cell(name, "") for name in names)
    writer.writerows([_cell(row.get(name), float_format) for name in names] for row in rows)
    return out.getvalue()


def _cell(value: object, float_format: str) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else format(value, float_format)
    if not isinstance(value, str) or re.fullmatch(NUMBER, value):
        return value
    return re.sub(FORMULA, r"\1'\2", printable(value))
