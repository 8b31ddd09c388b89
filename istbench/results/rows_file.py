"""Evaluations of runs in one file, a row each: JSON lines or Parquet, as a data set that others can keep."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from istbench.base.decode import decode_json, read_text
from istbench.base.errors import UserError, shown
from istbench.base.files import write_errors, writing_whole

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("jsonl", "parquet")
_Row = dict[str, str | float | bool | None]


def write_rows(frame: pd.DataFrame, path: Path) -> None:
    """Write `frame`, such as `results.frame.evaluations_frame` gives, to `path` in the format of its ending.

    Raises:
        UserError: for another ending, without the package for Parquet, and if the file cannot be written.
    """
    ending = _ending(path)
    with write_errors(path), writing_whole(path) as file:
        if ending == "parquet":
            frame.to_parquet(file, index=False)
        else:
            for row in frame.to_dict("records"):
                file.write(msgspec.json.encode({str(name): _plain(value) for name, value in row.items()}) + b"\n")


def read_rows(path: str | Path) -> pd.DataFrame:
    """The rows of a file of `istbench export --format jsonl` or `parquet`.

    Raises:
        UserError: for another ending, without the package for Parquet, and for a file without such rows.
    """
    import pandas as pd

    path = Path(path)
    if _ending(path) == "parquet":
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from None
    lines = read_text(path, "rows of `istbench export`").splitlines()
    rows = [
        decode_json(line.encode(), _Row, f"{path}:{number}", "export it again")
        for number, line in enumerate(lines, start=1)
    ]
    return pd.DataFrame(rows)


def _ending(path: Path) -> str:
    ending = path.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise UserError(f"{shown(str(path))} ends in none of .{', .'.join(FORMATS)}")
    if ending == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet needs pyarrow, which is not installed: pip install pyarrow; or use jsonl")
    return ending


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
