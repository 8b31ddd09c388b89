"""Errors of replays, against the same training on shaped links, and their tables."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from istbench.base.options.texts import Text
from istbench.cluster.profile import MessageCosts
from istbench.cluster.replay_checks import Check, Measurement, checks_of
from istbench.report.phrases import guide_line
from istbench.report.tables.numbers import percent, rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, column, table_of


class ReplayError(Measurement, frozen=True, kw_only=True):
    """One measurement: local steps of a method, timed on shaped links and replayed.

    Attributes:
        repeat: number of the repetition, from 0. steps: local steps of a node in `measured_s`.
        recorded_elsewhere_s: seconds of a replayed trace of another run, on the loopback interface. They include
            the change of the machine's speed between the two runs.
        scale: seconds of computing in the replay for one recorded second.
        dilation: the factor by which the lab slows down computing and links.
        data: the training data. doubt: a reason to distrust the seconds in the traces; may be empty.
        carrying: cost of the run's messages, measured before in the same lab; None without links.
    """

    repeat: int
    steps: int = 0
    recorded_elsewhere_s: float
    scale: float = 1.0
    dilation: float
    data: Text
    doubt: Text
    carrying: MessageCosts | None

    @property
    def error_recorded_elsewhere(self) -> float:
        """The error of the trace recorded in another run."""
        return self.recorded_elsewhere_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        errors = {"error": self.error, "error_recorded_elsewhere": self.error_recorded_elsewhere}
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | errors


def by_setting(errors: Iterable[ReplayError]) -> list[list[ReplayError]]:
    """The repeats of each setting, from the workload to the environment, in the order of their first."""
    settings: dict[tuple[str, str, int, str, str], list[ReplayError]] = defaultdict(list)
    for error in errors:
        key = error.workload, error.method, error.nodes, error.bandwidth, error.environment
        settings[key].append(error)
    return list(settings.values())


def summary_of(errors: Sequence[float]) -> str:
    """Median and maximum of the absolute errors, and the mean with its sign, in words."""
    sizes = [abs(error) for error in errors]
    return (
        f"median {statistics.median(sizes):.1%}, largest {max(sizes):.1%} without sign; "
        f"mean {statistics.fmean(errors):+.1%}"
    )


Repeats = Sequence[ReplayError]


def error_table(errors: Sequence[ReplayError], title: str, *, scaling: bool = False) -> Table:
    """A row for each workload, method, number of nodes and bandwidth: medians over the repeats.

    scaling: whether the replayed traces were recorded elsewhere; then a column has the environment.
    """
    elsewhere = summary_of([error.error_recorded_elsewhere for error in errors])
    if scaling:
        naming, columns, about = (*_NAMING, _ENVIRONMENT), _SCALED, (_SCALING, f"{_RIGHT}: {elsewhere}.")
    else:
        changes = "The speed of the machine changes between runs."
        naming, columns, about = _NAMING, _ON_LOOPBACK, (SCOPE, f"{_BEFORE}: {elsewhere}. {changes}")
    return table_of(
        (*naming, *_SECONDS, *columns),
        by_setting(errors),
        title=title,
        footer=_footer(errors, *about),
        keys=len(naming),
    )


def summary_table(measurements: Sequence[Measurement], title: str) -> Table:
    """A row for each method: the errors of all measurements."""
    own = [measurement.error for measurement in measurements if not measurement.environment]
    footer = (f"All {len(own)} measurements: {summary_of(own)}.", SCOPE, guide_line("replays.md#the-lab"))
    return table_of(_SUMMARY, list(checks_of(measurements).values()), title=title, footer=footer, keys=1)


_BEFORE = "Error of traces recorded on loopback before"
_RIGHT = "Error of the measured runs' own traces, which have the right computing"
_SCALING = (
    "The replayed traces are from the loopback interface, with one thread a node. The scale of computing follows "
    "from the speeds that the two runs measured, and from the share of a core that a node has."
)
SCOPE = (
    "Each replay has the computing that its run recorded, without scaling: these errors are those of the network's "
    "model alone. `--scaling` checks replays for other computing speeds."
)


def _seconds(of: Callable[[ReplayError], float]) -> Callable[[Repeats], Entry]:
    return lambda repeats: rounded(statistics.median(map(of, repeats)))


def _percent(of: Callable[[ReplayError], float]) -> Callable[[Repeats], Entry]:
    def entry(repeats: Repeats) -> Entry:
        values = [of(error) for error in repeats]
        median = statistics.median(values)
        spread = f" [{min(values):+.1%} to {max(values):+.1%}]" if len(values) > 1 else ""
        return Entry(text=f"{median:+.1%}{spread}", value=median)

    return entry


_NAMING: tuple[ColumnOf[Repeats], ...] = (
    column("workload", "workload", lambda repeats: repeats[0].workload, align="left"),
    column("method", "method", lambda repeats: repeats[0].method, align="left"),
    column("nodes", "nodes", lambda repeats: repeats[0].nodes),
    column("bandwidth", "bandwidth", lambda repeats: repeats[0].bandwidth),
)
_ENVIRONMENT: ColumnOf[Repeats] = column("environment", "a node has", lambda repeats: repeats[0].environment)
_SECONDS: tuple[ColumnOf[Repeats], ...] = (
    column("measured_s", "measured s", _seconds(lambda error: error.measured_s)),
    column("replayed_s", "replayed s", _seconds(lambda error: error.replayed_s)),
    column("error", "error", _percent(lambda error: error.error)),
)
_ON_LOOPBACK: tuple[ColumnOf[Repeats], ...] = (
    column(
        "error_recorded_elsewhere",
        "error, recorded on loopback",
        _percent(lambda error: error.error_recorded_elsewhere),
    ),
)
_SCALED: tuple[ColumnOf[Repeats], ...] = (
    column("scale", "scale of computing", _seconds(lambda error: error.scale)),
    column(
        "error_own_trace", "error of the run's own trace", _percent(lambda error: error.error_recorded_elsewhere)
    ),
)
_SUMMARY: tuple[ColumnOf[Check], ...] = (
    column("method", "method", lambda check: check.method, align="left"),
    column("workloads", "workload", lambda check: ", ".join(check.workloads), align="left"),
    column("nodes", "nodes", lambda check: ", ".join(map(str, check.nodes))),
    column("bandwidths", "bandwidths", lambda check: " to ".join(dict.fromkeys([check.slowest, check.fastest]))),
    column("measurements", "measurements", lambda check: check.measurements),
    column("median", "median error, without sign", lambda check: percent(check.median, ".1%")),
    column("mean", "mean error", lambda check: percent(check.mean, "+.1%")),
    column(
        "largest",
        "largest error",
        lambda check: Entry(text=f"{check.largest:+.1%} ({check.where})", value=check.largest),
    ),
)


def _footer(errors: Sequence[ReplayError], *about: str) -> tuple[str, ...]:
    dilation = max(error.dilation for error in errors)
    lines = [
        f"Error of {len(errors)} measurements: {summary_of([error.error for error in errors])}.",
        *about,
        f"Trained on {', '.join(sorted({error.data for error in errors}))}.",
    ]
    costs: dict[str, list[str]] = {}
    for error in errors:
        if error.carrying is not None:
            named = costs.setdefault(f"{error.nodes} nodes: {error.carrying}", [])
            if error.method not in named:
                named.append(error.method)
    for cost, methods in costs.items():
        lines.append(f"Sending and receiving for {', '.join(methods)}, measured before in the lab, {cost}.")
    doubtful = [error for error in errors if error.doubt]
    if doubtful:
        lines.append(f"Careful: {len(doubtful)} measurements may be far off: {doubtful[0].doubt}.")
    if dilation > 1:
        lines.append(
            f"More nodes than cores: computing and links ran {dilation:g} times slower. The seconds are "
            "divided by this factor."
        )
    return (*lines, guide_line("replays.md#the-lab"))
