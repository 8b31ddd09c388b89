"""A table as plain data, and how numbers are written in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from istbench.results.stats import Estimate

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Column:
    """key: name in CSV and JSON, unit included; title: what a reader sees."""

    key: str
    title: str
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """text: for readers; value: for programs, one value or several by name, None for what there is not."""

    text: str
    value: Scalar | Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True)
class Table:
    """rows: one entry a column. footer: one line a remark. keys: leading columns that name the row.

    context: what holds for every row, for programs. Rows of two tables with the same context and the same name
    are about the same thing. empty: what to say where there are no rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    footer: tuple[str, ...] = ()
    keys: int = 1
    empty: str = "No finished runs."
    context: Mapping[str, Scalar] = field(default_factory=dict)


def plain(value: str | int) -> Entry:
    """An entry whose text is its value."""
    return Entry(text=str(value), value=value)


def number(value: float) -> str:
    """`value` to three significant digits, all digits of whole thousands."""
    if math.isinf(value):
        return "∞"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def interval(estimate: Estimate, form: "NumberForm") -> str:
    """The interval in brackets after a space; nothing for a single seed, which has none."""
    return f" [{form(estimate.low)}–{form(estimate.high)}]" if estimate.seeds > 1 else ""


class NumberForm:
    """How an entry's numbers are written: significant digits by default, or so many decimals."""

    def __init__(self, decimals: int | None = None) -> None:
        self._decimals = decimals

    def __call__(self, value: float) -> str:
        if self._decimals is None or math.isinf(value):
            return "diverged" if value == -math.inf else number(value)
        return f"{value:.{self._decimals}f}"


def finite(value: float) -> float | None:
    """`value` for programs: None for infinity, which stands for a miss, and for NaN."""
    return value if math.isfinite(value) else None


def machine_value(estimate: Estimate) -> dict[str, Scalar]:
    """An estimate for programs: median, low, high (null where infinite), reached, seeds."""
    return {
        "median": finite(estimate.median),
        "low": finite(estimate.low),
        "high": finite(estimate.high),
        "reached": estimate.reached,
        "seeds": estimate.seeds,
    }
