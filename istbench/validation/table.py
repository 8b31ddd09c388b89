"""Replay errors as a table."""

import statistics
from collections.abc import Sequence

from istbench.report.tables.table import Column, Entry, Table, number, plain
from istbench.validation.measurement import ReplayError, by_setting, median_and_largest


def error_table(errors: Sequence[ReplayError], title: str) -> Table:
    """A row for each method, number of nodes and bandwidth: medians over the repeats."""
    rows = []
    for repeats in by_setting(errors):
        first = repeats[0]
        rows.append(
            (
                plain(first.method),
                plain(first.nodes),
                plain(first.bandwidth),
                _seconds([error.measured_s for error in repeats]),
                _seconds([error.replayed_s for error in repeats]),
                _percent([error.error for error in repeats]),
                _percent([error.error_recorded_elsewhere for error in repeats]),
            )
        )
    return Table(
        title=title,
        columns=(
            Column(key="method", title="method", align="left"),
            Column(key="nodes", title="nodes"),
            Column(key="bandwidth", title="bandwidth"),
            Column(key="measured_s", title="measured s"),
            Column(key="replayed_s", title="replayed s"),
            Column(key="error", title="error"),
            Column(key="error_recorded_elsewhere", title="error, recorded on loopback"),
        ),
        rows=tuple(rows),
        footer=tuple(_footer(errors)),
        keys=3,
    )


def _seconds(values: Sequence[float]) -> Entry:
    median = statistics.median(values)
    return Entry(text=number(median), value=median)


def _percent(values: Sequence[float]) -> Entry:
    median = statistics.median(values)
    spread = f" [{min(values):+.1%} to {max(values):+.1%}]" if len(values) > 1 else ""
    return Entry(text=f"{median:+.1%}{spread}", value=median)


def _footer(errors: Sequence[ReplayError]) -> list[str]:
    median, largest = median_and_largest([error.error for error in errors])
    other_median, other_largest = median_and_largest([error.error_recorded_elsewhere for error in errors])
    dilation = max(error.dilation for error in errors)
    lines = [
        "Measured: real processes on links shaped by tc. Replayed: the trace of the same run, which holds CPU "
        "seconds and message sizes, no waiting.",
        f"Error, without its sign: median {median:.1%}, largest {largest:.1%}, of {len(errors)} measurements.",
        f"Recorded on loopback, in another run before: median {other_median:.1%}, largest {other_largest:.1%}; the "
        "machine's own speed changes between runs.",
    ]
    if dilation > 1:
        lines.append(
            f"More nodes than cores: compute and links ran {dilation:g} times slower, seconds are divided by that."
        )
    return lines
