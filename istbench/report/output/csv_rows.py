"""Tables as rows of one CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from istbench.report.tables.table import Column, Scalar, Table


def tables_csv(tables: Iterable[Table]) -> str:
    """All rows of `tables` as one CSV with a header line: numbers, empty for what there is not.

    The first columns say what holds for the row's table, the others are its own; a entry of several values is
    as many columns, such as `train_s_to_0.77_median`. Rows that are about the same thing are one line.
    """
    lines: dict[object, dict[str, Scalar]] = {}
    for table in tables:
        for row in table.rows:
            values = [entry.value for entry in row]
            about = (*table.context.items(), *values[: table.keys]) if table.keys else len(lines)
            lines.setdefault(about, dict(table.context)).update(_flat(table.columns, values))
    records = list(lines.values())
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _flat(columns: Sequence[Column], values: Sequence[Scalar | Mapping[str, Scalar]]) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for column, value in zip(columns, values, strict=True):
        if isinstance(value, Mapping):
            flat.update({f"{column.key}_{name}": part for name, part in value.items()})
        elif value is not None:
            flat[column.key] = value
    return flat
