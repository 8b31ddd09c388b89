"""Other people's measurements, predicted from their numbers with nothing fitted. Needs no torch."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from istbench.base.files import write_errors
from istbench.base.options.numbers import Count, Nodes, Seconds
from istbench.cluster.collective import Backend
from istbench.methods.size_plans import SIZE_PLANS
from istbench.plan.numbers import Numbers, cluster_of, record_of
from istbench.plan.script_time import ChosenMethod, size_trace, steady_step
from istbench.report.output.figure import write_figure
from istbench.report.output.formats import table_markdown, tables_csv
from istbench.report.phrases import Lead
from istbench.report.tables.numbers import number, rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, column, plain, table_of
from istbench.studies.reproduce.figures import read_rows
from istbench.studies.reproduce.paper import PUBLISHED
from istbench.studies.reproduce.reproduction import write_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Quantity = Literal["s_per_step", "s_per_round", "tokens_per_s", "images_per_s"]
_NOTES: dict[str, tuple[Lead, ...]] = {
    "slow link": (
        Lead("local_sgd: rates checked by iperf3. ddp: nominal rates; whether they were in force is not recorded."),
    ),
    "latency": (
        Lead("20 ms there and back, by netem."),
        Lead(
            "By its logs, a step of local_sgd at 1000 Mbit/s averages for 4.7 of its 6.19 s, the link carries some "
            "400 Mbit/s meanwhile, and hashes weights and momenta for .66 s, which the prediction does not know."
        ),
    ),
    "several GPUs a host": (
        Lead("GPUs: hosts x GPUs of a host, which share its link. Rates are nominal."),
        Lead("MPI on CPUs over TCP is predicted as gloo's ring."),
    ),
    "parameter server": (
        Lead("gRPC is predicted as istbench's parameter_server, with a server on every GPU's process."),
    ),
}
CLASSES = tuple(_NOTES)
"""The classes of measurements: by what a prediction must get right."""

_FAR_MS = 5.0
# Units of a step of all nodes: 4 nodes x 4 sequences x 512 tokens; 64 images a node.
_TOKENS, _IMAGES = 4 * 4 * 512, 64


class Outside(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A measurement of another project, with the figures that a prediction needs, and the prediction.

    Attributes:
        source, where, model: its origin. compute_step_s: of a step of one node without communication.
        bandwidth_mbit: of a host's link. round_trip_ms: between hosts, there and back. backend: as in its
            source. quantity, value: the measurement.
    """

    source: str
    where: str
    model: str
    parameters: Count
    bytes_per_parameter: Count
    compute_step_s: Seconds
    nodes: Nodes
    gpus_per_host: Nodes
    bandwidth_mbit: Seconds
    round_trip_ms: Seconds
    backend: str
    method: str
    local_steps: Count
    quantity: Quantity
    value: Seconds
    remark: str = ""

    @property
    def kind(self) -> str:
        """Its class, of `CLASSES`."""
        if self.method == "parameter_server":
            return "parameter server"
        if self.gpus_per_host > 1:
            return "several GPUs a host"
        return "latency" if self.round_trip_ms >= _FAR_MS else "slow link"

    @property
    def collectives(self) -> Backend:
        """The library that a replay takes: gloo's ring stands for MPI's on processors."""
        return "nccl" if self.backend.startswith("nccl") else "gloo"

    @property
    def measured_s(self) -> float:
        """The measurement as seconds of a step."""
        if self.quantity == "s_per_step":
            return self.value
        if self.quantity == "s_per_round":
            return self.value / self.local_steps
        return (_TOKENS if self.quantity == "tokens_per_s" else self.nodes * _IMAGES) / self.value

    @property
    def chosen(self) -> ChosenMethod:
        """Its method, with its local steps if that has the option."""
        every = SIZE_PLANS[self.method].every
        return ChosenMethod(name=self.method, options={every: self.local_steps} if every == "local_steps" else {})

    @cached_property
    def predicted_s(self) -> float:
        """Seconds of a step, from its numbers."""
        numbers = Numbers(
            parameters=self.parameters,
            step_s=self.compute_step_s,
            nodes=self.nodes,
            gpus_per_host=self.gpus_per_host,
            bandwidth=self.bandwidth_mbit * 1e6,
            latency_s=self.round_trip_ms / 2e3,
        )
        record = record_of(numbers)
        cluster = dataclasses.replace(cluster_of(numbers, record), backend=self.collectives, in_turns=False)
        trace = size_trace(record, self.chosen, self.nodes)
        assert trace is not None
        return steady_step(trace, cluster)[1]

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds of a step."""
        return self.predicted_s / self.measured_s


def outside_rows() -> list[Outside]:
    """All measurements that come with istbench."""
    return read_rows(PUBLISHED / "outside.csv", Outside)


def worst(found: Iterable[Outside]) -> Outside:
    """The prediction that is furthest off, by ratio."""
    return max(found, key=lambda own: max(own.ratio, 1 / own.ratio))


def class_table(found: Sequence[Outside]) -> Table:
    """The ratio of predicted to measured in each class."""
    columns: tuple[ColumnOf[str], ...] = (
        column("class", "class", plain, align="left"),
        column("rows", "rows", lambda kind: len(_of(found, kind))),
        column("ratio", "predicted / measured", lambda kind: _spread(_of(found, kind))),
        column("worst", "furthest off", lambda kind: _named(worst(_of(found, kind))), align="left"),
    )
    off = worst(found)
    return table_of(
        columns,
        CLASSES,
        title="Other people's measurements, predicted from their numbers: errors by class",
        footer=(
            Lead("Nothing is fitted to them. A ratio below 1 is a prediction that is too fast."),
            Lead(
                "A model counts as 16 equal layers. This was 32 before, and became 16 for speed when the errors "
                "were known: it moved the ratio of a row by .11 at most."
            ),
            Lead(f"Furthest off of all: {_named(off).text}, in the class: {off.kind}."),
        ),
    )


def rows_tables(found: Sequence[Outside]) -> tuple[Table, ...]:
    """Every measurement beside its prediction, a table for each class."""
    return tuple(_rows_table(kind, _of(found, kind)) for kind in CLASSES)


def _rows_table(kind: str, found: Sequence[Outside]) -> Table:
    columns: tuple[ColumnOf[Outside], ...] = (
        column("model", "model", lambda own: own.model, align="left"),
        column("method", "method", lambda own: own.chosen.label, align="left"),
        column("backend", "backend", lambda own: own.backend, align="left"),
        column("nodes", "GPUs", _nodes),
        column("mbit", "Mbit/s", lambda own: rounded(own.bandwidth_mbit)),
        column("predicted_s", "predicted s", lambda own: rounded(own.predicted_s)),
        column("measured_s", "measured s", lambda own: rounded(own.measured_s)),
        column("ratio", "ratio", lambda own: Entry(text=f"{own.ratio:.2f}", value=own.ratio)),
        column("source", "source", lambda own: own.source, align="left", rank=1),
    )
    return table_of(
        columns,
        found,
        title=f"{kind}: seconds of a step, predicted and measured",
        footer=_NOTES[kind],
        keys=2,
        context={"class": kind},
    )


def write_outside(found: Sequence[Outside], folder: Path) -> list[Path]:
    """Write the tables as markdown and CSV, and the picture, into `folder`; returns the paths.

    Raises:
        UserError: if they cannot be written.
    """
    points = {kind: [(own.measured_s, own.predicted_s) for own in _of(found, kind)] for kind in CLASSES}
    with write_errors(folder):
        pictures = write_figure(partial(_fill, points), folder / "outside")
    tables = (class_table(found), *rows_tables(found))
    shown = "\n".join(table_markdown(table) for table in tables)
    page = (
        f"# Other people's measurements\n\n{_INTRODUCTION}\n{shown}\n![predicted against measured](outside.png)\n"
    )
    contents = {folder / "README.md": page, folder / "outside.csv": tables_csv(tables[1:])}
    return [*write_texts(contents), *pictures]


_INTRODUCTION = """Seconds, tokens and images a second that other projects measured on their own machines, beside
the prediction from their numbers: parameters, the seconds of a step without communication, nodes, GPUs a host,
bandwidth and latency. Nothing is fitted to them. `istbench reproduce outside` makes this page again.
"""


def _of(found: Iterable[Outside], kind: str) -> list[Outside]:
    return [own for own in found if own.kind == kind]


def _spread(found: Sequence[Outside]) -> Entry:
    ratios = sorted(own.ratio for own in found)
    ends = {"low": ratios[0], "high": ratios[-1]}
    return Entry(text=f"{ratios[0]:.2f}–{ratios[-1]:.2f}", value=ends)


def _named(own: Outside) -> Entry:
    text = f"{own.ratio:.2f} ({own.chosen.label}, {own.model}, {number(own.bandwidth_mbit)} Mbit/s, {own.backend})"
    return Entry(text=text, value=own.ratio)


def _nodes(row: Outside) -> str:
    return f"{row.nodes // row.gpus_per_host} x {row.gpus_per_host}" if row.gpus_per_host > 1 else str(row.nodes)


_LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"))
"""Colours that colour-blind readers tell apart, with markers."""
_TWICE = 2


def _fill(points: Mapping[str, Sequence[tuple[float, float]]], figure: "Figure") -> None:
    """Draw `points`, measured and predicted seconds by class."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure.set_size_inches(7.2, 4.6)
    area = figure.subplots()
    every = [seconds for pairs in points.values() for pair in pairs for seconds in pair]
    ends = [min(every) / _TWICE, max(every) * _TWICE]
    area.plot(ends, ends, color="0.5", linewidth=1)
    area.fill_between(ends, [end / _TWICE for end in ends], [end * _TWICE for end in ends], color="0.93")
    for (name, pairs), (colour, marker) in zip(points.items(), _LOOKS, strict=False):
        measured, predicted = zip(*pairs, strict=True)
        area.plot(measured, predicted, marker, color=colour, markersize=6, markerfacecolor="none", label=name)
    area.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (area.xaxis, area.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    area.set_xlabel("measured by others, seconds of a step")
    area.set_ylabel("predicted, seconds of a step")
    area.spines[["top", "right"]].set_visible(False)
    area.grid(alpha=0.2)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle("Other people's measurements, predicted from their numbers", fontweight="bold")
    figure.supxlabel("line: equal; grey: within a factor of 2", fontsize="small")
