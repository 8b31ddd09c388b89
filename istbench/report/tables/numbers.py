"""Numbers in tables, as texts for readers and values for programs."""

import math
from collections.abc import Callable

from istbench.report.tables.table import NOTHING, Entry, Scalar
from istbench.results.metrics import value_text
from istbench.results.stats import SeedMedian
from istbench.results.stats import finite as finite


def rounded(value: float | None) -> Entry:
    """An entry whose text is its value to three significant digits."""
    return NOTHING if value is None else Entry(text=number(value), value=value)


def percent(share: float | None, form: str = ".0%") -> Entry:
    """An entry whose text is the share in percent."""
    return NOTHING if share is None else Entry(text=f"{share:{form}}", value=share)


def of_hundred(share: float) -> Entry:
    """An entry of a column in percent."""
    return Entry(text=f"{100 * share:.1f}", value=100 * share)


def number(value: float) -> str:
    """`value` with three significant digits, or with all digits before the point."""
    if math.isinf(value):
        return "∞"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


NumberForm = Callable[[float], str]
"""A format of the numbers of an entry."""


def metric_value(value: float) -> str:
    """A value of a metric; an infinite one stands for a run without a number."""
    return "diverged" if math.isinf(value) else value_text(value)


def with_interval(value: SeedMedian, form: NumberForm) -> str:
    """The median, with the interval in brackets for several seeds."""
    return form(value.median) + interval(value, form)


def interval(value: SeedMedian, form: NumberForm) -> str:
    """The interval in brackets after a space; empty for a single seed."""
    if value.seeds < 2:
        return ""
    dash = "–" if value.low >= 0 or math.isinf(value.low) else " to "
    return f" [{form(value.low)}{dash}{form(value.high)}]"


def machine_value(value: SeedMedian) -> dict[str, Scalar]:
    """A median over seeds for programs: median, low, high (null where infinite), reached, seeds."""
    return {
        "median": finite(value.median),
        "low": finite(value.low),
        "high": finite(value.high),
        "reached": value.reached,
        "seeds": value.seeds,
    }
