"""Replay errors as a table."""

import statistics
from collections.abc import Callable, Sequence

from istbench.report.phrases import guide_line
from istbench.report.tables.numbers import plain, rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, fill
from istbench.validation.measurement import ReplayError, by_setting, summary_of

Repeats = Sequence[ReplayError]


def error_table(errors: Sequence[ReplayError], title: str) -> Table:
    """A row for each method, number of nodes and bandwidth: medians over the repeats."""
    columns, rows = fill(_COLUMNS, by_setting(errors))
    return Table(title=title, columns=columns, rows=rows, footer=tuple(_footer(errors)), keys=3)


def _seconds(of: Callable[[ReplayError], float]) -> Callable[[Repeats], Entry]:
    return lambda repeats: rounded(statistics.median(map(of, repeats)))


def _percent(of: Callable[[ReplayError], float]) -> Callable[[Repeats], Entry]:
    def entry(repeats: Repeats) -> Entry:
        values = [of(error) for error in repeats]
        median = statistics.median(values)
        spread = f" [{min(values):+.1%} to {max(values):+.1%}]" if len(values) > 1 else ""
        return Entry(text=f"{median:+.1%}{spread}", value=median)

    return entry


_COLUMNS: tuple[ColumnOf[Repeats], ...] = (
    ColumnOf(key="method", title="method", align="left", entry=lambda repeats: plain(repeats[0].method)),
    ColumnOf(key="nodes", title="nodes", entry=lambda repeats: plain(repeats[0].nodes)),
    ColumnOf(key="bandwidth", title="bandwidth", entry=lambda repeats: plain(repeats[0].bandwidth)),
    ColumnOf(key="measured_s", title="measured s", entry=_seconds(lambda error: error.measured_s)),
    ColumnOf(key="replayed_s", title="replayed s", entry=_seconds(lambda error: error.replayed_s)),
    ColumnOf(key="error", title="error", entry=_percent(lambda error: error.error)),
    ColumnOf(
        key="error_recorded_elsewhere",
        title="error, recorded on loopback",
        entry=_percent(lambda error: error.error_recorded_elsewhere),
    ),
)


def _footer(errors: Sequence[ReplayError]) -> list[str]:
    dilation = max(error.dilation for error in errors)
    lines = [
        f"Error of {len(errors)} measurements: {summary_of([error.error for error in errors])}.",
        f"Error of traces recorded on loopback before: "
        f"{summary_of([error.error_recorded_elsewhere for error in errors])}. The speed of the machine changes "
        "between runs.",
        f"Trained on {', '.join(sorted({error.data for error in errors}))}.",
    ]
    for method, carrying in {error.method: error.carrying for error in errors}.items():
        lines.append(f"Sending and receiving for {method}, measured before in the lab: {carrying}.")
    doubtful = [error for error in errors if error.doubt]
    if doubtful:
        lines.append(f"Careful: {len(doubtful)} measurements may be far off: {doubtful[0].doubt}.")
    if dilation > 1:
        lines.append(
            f"More nodes than cores: computing and links ran {dilation:g} times slower. The seconds are "
            "divided by this factor."
        )
    return [*lines, guide_line("the-lab")]
