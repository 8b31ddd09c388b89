"""The answer, the table and the page of an estimate from numbers."""

from collections.abc import Sequence

from istbench.plan.estimate import LEFT_OUT, Estimate, EstimateRow, curves
from istbench.report.page import AtTarget, OnClock, Page, Study
from istbench.report.palette import method_styles
from istbench.report.phrases import Lead
from istbench.report.plots.plot import BANDWIDTH_LABEL, Panel, Plot, Series
from istbench.report.tables.numbers import number, percent, rounded
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, plain, table_of

_SHOWN_STEPS = 0.9
_MEGA, _GIGA = 1e6, 1e9
_NEVER = Entry(text="none", value=None)


def estimate_page(found: Estimate, answer: str, table: Table) -> Page:
    """The page of `found`: its `answer`, its `table`, and the seconds of a step against bandwidth."""
    by_label = curves(found)
    styles = method_styles(by_label)
    series = []
    for (_, label), points in by_label.items():
        x, y = tuple(bits / _MEGA for bits, _ in points), tuple(seconds for _, seconds in points)
        series.append(Series(label=label, style=styles[label], x=x, y=y, low=y, high=y))
    plot = Plot(
        stem="step-by-bandwidth",
        title="Seconds of a step",
        subtitle=table.title,
        kind="lines",
        x_label=f"{BANDWIDTH_LABEL}, Mbit/s",
        y_label="seconds of a step",
        panels=(Panel(title="estimated", series=tuple(series)),),
        x_scale="log",
        y_scale="log",
    )
    clock = OnClock(clock="estimated seconds", by_target=(AtTarget(table=table),), notes=table.footer)
    study = Study(
        name="Seconds of a step, estimated",
        styles=styles,
        clocks=(clock,),
        by_bandwidth=((found.numbers.placed, plot),),
    )
    numbers = found.numbers
    title = f"{_parameters(numbers.parameters)} parameters on {numbers.placed}: seconds of a step"
    return Page(title=title, studies=(study,), problems=found.left_out, estimate=answer)


def estimate_sentence(found: Estimate) -> str:
    """The answer: `ddp` over one node and one host, what holds it back, what helps most, and the fastest row."""
    numbers = found.numbers
    alone = numbers.step_s
    over = numbers.nodes * alone / found.ddp_s
    one = "one GPU" if numbers.gpus_per_host > 1 else "one node"
    beside = ""
    if found.host_samples is not None and numbers.hosts > 1:
        beside = f" and {number(over / found.host_samples)} times one host"
    slower = f"{numbers.placed} are slower than one. " if over < 1 else ""
    text = (
        f"{slower}On {numbers.placed} with {found.cluster.name}, ddp takes {number(found.ddp_s)} s a step: "
        f"{number(over)} times the samples of {one}{beside}."
    )
    cause, cost = max(found.held_by.items(), key=lambda pair: pair[1], default=("", 0.0))
    if cost > 0.01 * found.ddp_s:
        text += f" {cause[:1].upper()}{cause[1:]} hold it back, by {number(cost)} s."
    helps = [pair for pair in found.helps if pair[1] < found.ddp_s]
    if helps and cost > 0.01 * found.ddp_s:
        text += f" What helps: {', '.join(f'{name} {number(seconds)} s' for name, seconds in helps)}."
    return text


def estimate_table(found: Estimate, checked: Sequence[str]) -> Table:
    """The rows of `found`, the fastest first. checked: where the numbers lie outside of what was checked."""
    numbers, rows = found.numbers, sorted(found.rows, key=lambda row: row.step_s)
    levels = list(rows[0].bandwidth_for) if rows else []
    one_host = None if numbers.hosts == 1 else found.host_samples
    columns: list[ColumnOf[EstimateRow]] = [
        ColumnOf(key="method", title="method", entry=lambda row: plain(row.label), align="left"),
        ColumnOf(key="local_steps", title="local steps", entry=lambda row: plain(row.local_steps)),
        ColumnOf(key="step_s", title="s per step", entry=lambda row: rounded(row.step_s)),
        ColumnOf(key="range_s", title="range", entry=_range),
        ColumnOf(key="over_gpu", title="over one GPU", entry=lambda row: rounded(row.over_gpu)),
        ColumnOf(
            key="over_host",
            title="over one host",
            entry=lambda row: rounded(one_host and row.over_gpu / one_host),
            optional=one_host is None,
        ),
        ColumnOf(key="computing", title="com- puting", entry=lambda row: percent(row.computing)),
        ColumnOf(
            key="samples_per_s",
            title="samples /s",
            entry=lambda row: rounded(numbers.samples and numbers.samples * row.over_gpu / row.alone_s),
            optional=numbers.samples is None,
            rank=2,
        ),
        ColumnOf(key="sent_mb", title="MB sent per step", entry=lambda row: rounded(row.sent / _MEGA), rank=1),
        *(_bandwidth_column(level, first=place == 0) for place, level in enumerate(levels)),
        ColumnOf(key="steps_for_0.9", title="steps for 90%", entry=_steps, optional=True, rank=1),
    ]
    said = [f"{line[:1].upper()}{line[1:]}." for line in checked]
    carried = "0.2 to 1" if numbers.nominal else "0.58 to 1.2"
    return table_of(
        columns,
        rows,
        title=f"{_parameters(numbers.parameters)} parameters, {number(numbers.step_s)} s a step, {numbers.placed}, "
        f"{found.cluster.name}: estimated, nothing ran",
        footer=(
            Lead(
                f"Range: links carry {carried} of their rate. G: Gbit/s of a host's link at which this share of a "
                "step computes. Steps: local steps of a round that reach 90% here. Of accuracy this says nothing."
            ),
            *(Lead(line) for line in said),
            f"Left out: {LEFT_OUT}.",
            *(f"Left out: {line}." for line in found.left_out),
        ),
        keys=1,
        empty="No method follows from these sizes.",
    )


def _bandwidth_column(level: float, *, first: bool) -> ColumnOf[EstimateRow]:
    def entry(row: EstimateRow) -> Entry:
        bandwidth = row.bandwidth_for.get(level)
        return _NEVER if bandwidth is None else rounded(bandwidth / _GIGA)

    title = f"G for {level:.0%}" if first else f"{level:.0%}"
    return ColumnOf(key=f"gbit_for_{level:g}", title=title, entry=entry)


def _steps(row: EstimateRow) -> Entry:
    count = row.steps_for.get(_SHOWN_STEPS)
    return NOTHING if count is None else plain(count)


def _range(row: EstimateRow) -> Entry:
    return Entry(text=f"{number(row.low_s)}–{number(row.high_s)}", value={"low": row.low_s, "high": row.high_s})


def _parameters(count: int) -> str:
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= scale:
            return f"{count / scale:.4g}{unit}"
    return str(count)
