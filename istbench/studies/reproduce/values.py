"""Values of runs for a table, and their texts."""

import math
from collections.abc import Callable, Sequence

from istbench.report.tables.numbers import NumberForm, number
from istbench.results.curves import Reached, time_to_target
from istbench.results.load import Run
from istbench.results.metrics import Metric, metric_named, value_text
from istbench.results.stats import Estimate, estimate, median
from istbench.studies.reproduce.paper import Subject


def metric_of(run: Run, name: str) -> Metric:
    """The metric `name` with the direction that `run` recorded, else that of its name."""
    own = run.header.own_metric
    return own if own.name == name else metric_named(name)


def measuring(subject: Subject, name: str) -> tuple[Run, ...]:
    """The runs of `subject` that evaluated the metric `name`."""
    return tuple(run for run in subject.runs if name in run.curve.evaluations[-1].metrics)


def seconds_to(subject: Subject, name: str, level: float) -> list[float]:
    """For each run of `subject`, the seconds to `level` of the metric `name`; infinite for a miss."""
    return [there.seconds if there else math.inf for there in _crossings(subject, name, level)]


def is_rough(subject: Subject, name: str, level: float) -> bool:
    """Whether a run of `subject` reached `level` before its first evaluation."""
    return any(there is not None and there.from_start for there in _crossings(subject, name, level))


def _crossings(subject: Subject, name: str, level: float) -> list[Reached | None]:
    return [time_to_target(run.curve.on_metric(metric_of(run, name)), level) for run in measuring(subject, name)]


def finals_of(subject: Subject, name: str) -> list[float]:
    """The final value of the metric `name` of each run; the worst value where it is no number."""
    found = []
    for run in measuring(subject, name):
        curve = run.curve.on_metric(metric_of(run, name))
        final = curve.final()
        found.append(curve.metric.worst if final is None else final)
    return found


def best_of(subject: Subject, name: str) -> float | None:
    """The best value of the metric `name` in each run of `subject`, as the median; None without one."""
    best = [run.curve.on_metric(metric_of(run, name)).best() for run in measuring(subject, name)]
    known = [value for value in best if value is not None]
    return median(known) if known else None


def estimate_of(values: Sequence[float]) -> Estimate | None:
    """The estimate over seeds; None without values."""
    return estimate(values) if values else None


def missed_text(subject: Subject, name: str, ours: Estimate) -> str:
    """The entry of a level that at least half of the seeds missed."""
    best = best_of(subject, name)
    known = "" if best is None else f", best {value_text(best)}"
    who = "not reached" if ours.reached == 0 else f"reached by {ours.reached} of {ours.seeds} seeds"
    return f"{who}{known}"


def range_text(ours: Estimate | None, form: NumberForm = number) -> str:
    """The range over seeds; empty for fewer than two."""
    if ours is None or ours.seeds < 2:
        return ""
    return f"{_bound(ours.low, form)}–{_bound(ours.high, form)}"


def _bound(value: float, form: Callable[[float], str]) -> str:
    return "∞" if math.isinf(value) else form(value)
