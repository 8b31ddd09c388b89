"""The seconds of a step by every method from numbers alone, for a notebook and for `istbench estimate`."""

import html as escaping
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.api.arguments import from_python
from istbench.api.replaying import replaying
from istbench.api.results import table_html
from istbench.base.decode import convert
from istbench.base.errors import UserError, shown
from istbench.base.options.numbers import Count, Nodes, Part
from istbench.base.units import number_or, parse_bandwidth, parse_parameters, parse_step, parse_time
from istbench.cluster.profile import load_profile
from istbench.plan.estimate import Estimate, EstimateRow, checked_lines, curves, without_plan
from istbench.plan.estimate import estimate as estimate_rows
from istbench.plan.numbers import Numbers, read_layers
from istbench.plan.script_time import chosen_methods
from istbench.report.output.formats import print_results
from istbench.report.page import AtTarget, OnClock, Page, Study
from istbench.report.palette import method_styles
from istbench.report.phrases import Lead
from istbench.report.plots.plot import BANDWIDTH_LABEL, Panel, Plot, Series
from istbench.report.report import Report
from istbench.report.tables.numbers import number, percent, rounded
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, column, plain, table_of

if TYPE_CHECKING:
    import pandas as pd

    from istbench.cluster.script_record import DType


_DTYPES: "dict[str, DType]" = {
    "fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16",
    "float16": "float16",
}  # fmt: skip
_MOST_GPUS = 72
"""GPUs of the largest host: one domain of NVLink."""


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """An estimate with its checks. A notebook shows the answer and the table.

    Attributes:
        found: the rows and what they follow from. checked: a line on each check of such estimates.
    """

    found: Estimate
    checked: tuple[str, ...]

    def answer(self) -> str:
        """How much faster the nodes are than one, what holds them back, and what helps most."""
        found = self.found
        numbers = found.numbers
        alone = numbers.step_s
        over = numbers.nodes * alone / found.ddp_s
        beside = ""
        if found.host_samples is not None and numbers.hosts > 1:
            beside = f" and {number(over / found.host_samples)} times one host"
        slower = f"{numbers.placed} are slower than one. " if over < 1 else ""
        text = (
            f"{slower}On {numbers.placed} with {found.cluster.name}, ddp takes {number(found.ddp_s)} s a step: "
            f"{number(over)} times the samples of one {numbers.node_name}{beside}."
        )
        cause, cost = max(found.held_by.items(), key=lambda pair: pair[1], default=("", 0.0))
        if cost > 0.01 * found.ddp_s:
            holds = "hold" if cause.startswith(("bytes", "links")) else "holds"
            text += f" {cause[:1].upper()}{cause[1:]} {holds} it back, by {number(cost)} s."
        helps = [pair for pair in found.helps if pair[1] < found.ddp_s]
        for row in found.rows[:1]:  # the fastest
            if row.step_s < min([found.ddp_s, *(seconds for _, seconds in helps)]):
                every = f" every {row.local_steps} steps" if row.local_steps > 1 else ""
                helps.insert(0, (f"{row.method.label}{every}", row.step_s))
        if helps and cost > 0.01 * found.ddp_s:
            text += f" What helps: {', '.join(f'{name} {number(seconds)} s' for name, seconds in helps)}."
        return text

    @property
    def table(self) -> Table:
        """The rows, the fastest first, and where the numbers lie outside of what was checked."""
        found, numbers, rows = self.found, self.found.numbers, self.found.rows
        levels = list(rows[0].bandwidth_for) if rows else []
        columns: list[ColumnOf[EstimateRow]] = [
            column("method", "method", lambda row: plain(row.method.label), align="left"),
            column("local_steps", "local steps", lambda row: plain(row.local_steps)),
            column("step_s", "s per step", lambda row: rounded(row.step_s)),
            column("range_s", "range", _range),
            column("over_gpu", f"over one {numbers.node_name}", lambda row: rounded(row.over_gpu)),
            column(
                "over_host",
                "over one host",
                lambda row: rounded(_over_host(found, row) if numbers.hosts > 1 else None),
                optional=True,
            ),
            column("computing", "com- puting", lambda row: percent(row.computing)),
            column(
                "samples_per_s",
                "samples /s",
                lambda row: rounded(_samples_per_s(found, row)),
                optional=True,
                rank=2,
            ),
            column("sent_mb", "MB sent per step", lambda row: rounded(row.sent / _MEGA), rank=1),
            *(_bandwidth_column(level, first=place == 0) for place, level in enumerate(levels)),
            column("steps_for_0.9", "steps for 90%", _steps, optional=True, rank=1),
        ]
        said = [f"{line[:1].upper()}{line[1:]}." for line in self.checked]
        carried = "0.2 to 1" if numbers.nominal else "0.58 to 1.2"
        return table_of(
            columns,
            rows,
            title=(
                f"{_parameters(numbers.parameters)} parameters, {number(numbers.step_s)} s a step, "
                f"{numbers.placed}, {found.cluster.name}: estimated, nothing ran"
            ),
            footer=(
                Lead(
                    f"Range: links carry {carried} of their rate. {_LEVELS if levels else ''}"
                    "Of accuracy this says nothing."
                ),
                *(Lead(line) for line in said),
                f"Left out: {without_plan()}.",
                *(f"Left out: {line}." for line in found.left_out),
            ),
            keys=1,
            empty="No method follows from these sizes.",
        )

    @property
    def rows(self) -> "pd.DataFrame":
        """A row for each method: seconds of a step with their range, samples a second, bytes, bandwidths."""
        import pandas as pd

        return pd.DataFrame(self.as_json()["rows"])

    @from_python
    def page(self, file: str | Path) -> Path:
        """Write the seconds against bandwidth as one page to `file`; returns it."""
        from istbench.report.output.html.write import write_page

        with replaying():
            page = self._page()
        write_page(page, Path(file))
        return Path(file)

    def _page(self) -> Page:
        found, numbers, table = self.found, self.found.numbers, self.table
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
            by_bandwidth=((numbers.placed, plot),),
        )
        title = f"{_parameters(numbers.parameters)} parameters on {numbers.placed}: seconds of a step"
        return Page(title=title, studies=(study,), problems=found.left_out, estimate=self.answer())

    @from_python
    def save(self, file: str | Path) -> Path:
        """Write a record for plan, map and replay to `file`; returns it."""
        from istbench.cluster.script_record import save_script

        save_script(self.found.record, Path(file))
        return Path(file)

    def as_json(self) -> dict[str, Any]:
        """The object of `istbench estimate --json`."""
        found, numbers = self.found, self.found.numbers
        return {
            "inputs": {
                "parameters": numbers.parameters,
                "step_s": numbers.step_s,
                "nodes": numbers.nodes,
                "hosts": numbers.hosts,
                "gpus_per_host": numbers.gpus_per_host,
                "bandwidth": found.cluster.bandwidth_out / found.cluster.payload,
                "latency_s": found.cluster.latency_s,
                "samples": numbers.samples,
                "dtype": numbers.dtype,
                "backward": numbers.backward,
            },
            "rows": [
                {
                    "method": row.method.name,
                    "options": dict(row.method.options),
                    "local_steps": row.local_steps,
                    "step_s": row.step_s,
                    "low": row.low_s,
                    "high": row.high_s,
                    "samples_per_s": _samples_per_s(found, row),
                    "over_gpu": row.over_gpu,
                    "over_host": _over_host(found, row),
                    "computing": row.computing,
                    "sent_bytes": row.sent,
                    "bandwidth_for": {f"{level:g}": bandwidth for level, bandwidth in row.bandwidth_for.items()},
                    "steps_for": {f"{level:g}": steps for level, steps in row.steps_for.items()},
                }
                for row in found.rows
            ],
            "held_by": dict(found.held_by),
            "helps": [{"what": name, "step_s": seconds} for name, seconds in found.helps],
            "left_out": list(found.left_out),
            "checked": list(self.checked),
        }

    def __repr__(self) -> str:
        shown = io.StringIO()
        print_results(Report(answers=(self.answer(),), tables=(self.table,)), shown, explain=False)
        return shown.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return f"<p>{escaping.escape(self.answer())}</p>{table_html(self.table)}"


@from_python
def estimate(
    parameters: float | str,
    step: float | str,
    nodes: int,
    *,
    bandwidth: float | str | None = None,
    latency: float | str | None = None,
    gpus_per_host: int | None = None,
    samples: int | None = None,
    dtype: str = "fp32",
    backward: float = 0.67,
    layers: str | Path | None = None,
    cluster: str | None = None,
    methods: str | Sequence[str] = (),
) -> Estimated:
    """Estimate the seconds of a step by each method from numbers alone, as `istbench estimate` does. Nothing runs.

    Args:
        parameters: Of the model, such as 125e6 or `125M`.
        step: Seconds of a step of one GPU without communication, or a text such as `220ms`.
        nodes: A GPU each; with `gpus_per_host`, the number of hosts.
        bandwidth: Of the link of a host, in bits/s or a text such as `25gbit`.
        latency: From host to host, one way, in seconds or a text such as `5ms`.
        gpus_per_host: They share the host's link.
        samples: Of a GPU in a step, for samples a second.
        dtype: Of a gradient.
        backward: Share of the step in the backward pass.
        layers: A CSV file of layers.
        cluster: A profile of links.
        methods: Rows, by default all that follow from sizes.

    Raises:
        UserError: for a number out of bounds.
    """
    profile = None if cluster is None else load_profile(cluster)
    if profile is None and bandwidth is None:
        raise UserError("estimate needs --bandwidth, the link of a host such as 25gbit, or a --cluster")
    if dtype not in _DTYPES:
        raise UserError(f"dtype {shown(dtype)} is none of {', '.join(_DTYPES)}")
    gpus = 1 if gpus_per_host is None else convert(gpus_per_host, Nodes, lambda _: "--gpus-per-host")
    if gpus > _MOST_GPUS:
        raise UserError(
            f"--gpus-per-host {gpus}: no host has more than {_MOST_GPUS} GPUs; --nodes counts the hosts"
        )
    hosts = 1 if profile is None or profile.host is None or gpus_per_host is not None else profile.host.nodes
    total = convert(nodes * gpus, Nodes, lambda _: "--nodes times --gpus-per-host")
    numbers = Numbers(
        parameters=round(number_or(parse_parameters, parameters, "--parameters")),
        step_s=number_or(parse_step, step, "--step"),
        nodes=total,
        samples=None if samples is None else convert(samples, Count, lambda _: "--samples"),
        gpus_per_host=min(hosts, total) if gpus_per_host is None else gpus,
        bandwidth=None if bandwidth is None else number_or(parse_bandwidth, bandwidth, "--bandwidth"),
        latency_s=None if latency is None else number_or(parse_time, latency, "--latency"),
        dtype=_DTYPES[dtype],
        backward=convert(backward, Part, lambda _: "--backward"),
        layers=() if layers is None else read_layers(Path(layers)),
        cluster=profile,
    )
    with replaying():
        found = estimate_rows(numbers, chosen_methods([methods] if isinstance(methods, str) else methods))
    return Estimated(found=found, checked=tuple(checked_lines(numbers, found.cluster, found.rows)))


def _samples_per_s(found: Estimate, row: EstimateRow) -> float | None:
    samples = found.numbers.samples
    return None if samples is None else samples * row.over_gpu / row.alone_s


def _over_host(found: Estimate, row: EstimateRow) -> float | None:
    """Samples a second over those of one host by `ddp`; None for hosts of one node."""
    return None if found.host_samples is None else row.over_gpu / found.host_samples


_SHOWN_STEPS = 0.9
_MEGA, _GIGA = 1e6, 1e9
_NEVER = Entry(text="none", value=None)


_LEVELS = (
    "G: Gbit/s of a host's link at which this share of a step computes. "
    "Steps: local steps of a round that reach 90% here. "
)


def _bandwidth_column(level: float, *, first: bool) -> ColumnOf[EstimateRow]:
    def entry(row: EstimateRow) -> Entry:
        bandwidth = row.bandwidth_for.get(level)
        return _NEVER if bandwidth is None else rounded(bandwidth / _GIGA)

    title = f"G for {level:.0%}" if first else f"{level:.0%}"
    return column(f"gbit_for_{level:g}", title, entry)


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
