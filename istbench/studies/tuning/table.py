"""A tuning as a table, a sentence and a JSON object: the best options of each method, its metric, its trials."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from istbench.base.options.options import option_text
from istbench.report.phrases import Caution, Lead, count_nodes, data_line, joined
from istbench.report.tables.numbers import metric_value, number
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Scalar, Table, column, table_of
from istbench.results.metrics import Metric, level_text
from istbench.results.stats import median
from istbench.studies.tuning.ranges import Range
from istbench.studies.tuning.trials import Contest, Judge, Judgement, Tried, spread

_EDGE = 0.02  # of a range, on its scale


def tuning_table(judgement: Judgement, judge: Judge, ranges: Mapping[str, Sequence[Range]]) -> Table:
    """A row for each method on each number of nodes."""
    metric, lower = judgement.metric.name, judge.by_seconds or judgement.metric.lower_is_better
    columns: list[ColumnOf[Contest]] = [
        column("method", "method", lambda own: own.method, align="left"),
        column("nodes", "nodes", lambda own: own.nodes),
        column("best_options", "best options", _best_options, align="left"),
    ]
    if judge.by_seconds:
        columns += [
            column("best_s", "s, best", lambda own: _seconds(own.best)),
            column("defaults_s", "s, defaults", lambda own: _seconds(own.defaults)),
            column("reached", "reached", _reached),
        ]
    spread_title = (
        "slowest, median, fastest that reached it" if judge.by_seconds else "worst, median, best of the trials"
    )
    columns += [
        column(f"best_{metric}", f"{metric}, best", lambda own: _value(own.best)),
        column(f"defaults_{metric}", f"{metric}, defaults", lambda own: _value(own.defaults)),
        column("trials", spread_title, lambda own: _spread(own, judge, lower)),
        column("lost", "failed or diverged", _lost, optional=True),
    ]
    header = judgement.header
    return table_of(
        columns,
        judgement.contests,
        title=f"Tuning of {header.workload_label} by {judge.words(metric, header.budget)}",
        footer=tuple(_footer(judgement, judge, ranges)),
        keys=2,
    )


def tuning_answer(judgement: Judgement, judge: Judge) -> str:
    """The best trial of all, its defaults and the next method, in a sentence."""
    lower = judge.by_seconds or judgement.metric.lower_is_better
    ranked = sorted(
        (own for own in judgement.contests if _judged(own.best, judge) is not None),
        key=lambda own: (_judged(own.best, judge) or 0.0) * (1 if lower else -1),
    )
    metric, budget = judgement.metric.name, judgement.header.budget
    if not ranked:
        lacks = f"has {metric} after {budget}"
        if judge.target is not None:
            lacks = f"reached {metric} {level_text(judge.target)}"
        failed = sum(tried.failed for own in judgement.contests for tried in own.tried)
        return f"No trial of {_methods(judgement)} {lacks}{f', and {failed} failed' if failed else ''}."
    first, *others = ranked
    result = _judged_text(first.best, judge)
    if judge.by_seconds:
        result += f" {judge.words(metric, budget)}"
    else:
        result = f"{metric} {result} after {budget}"
    next_one = next((own for own in others if own.method != first.method), None)
    behind = f", {_place(next_one, judgement)} {_judged_text(next_one.best, judge)} at best" if next_one else ""
    return (
        f"{_place(first, judgement)} with {_best_options(first).text} is the best of {_trials(judgement)}, "
        f"by one seed: {result}; its defaults {_judged_text(first.defaults, judge)}{behind}."
    )


def _trials(judgement: Judgement) -> str:
    """The trials of all methods, in words."""
    methods, trials = _methods(judgement), len(judgement.contests[0].tried)
    if trials == 1:
        return methods
    several = len({own.method for own in judgement.contests}) > 1
    return f"{trials} trials of each of {methods}" if several else f"{trials} trials"


def _methods(judgement: Judgement) -> str:
    """The methods of the contests, in words."""
    return joined(list(dict.fromkeys(own.method for own in judgement.contests)))


def _place(own: Contest, judgement: Judgement) -> str:
    several = len({other.nodes for other in judgement.contests}) > 1
    return f"{own.method} on {count_nodes(own.nodes)}" if several else own.method


def _judged(tried: Tried | None, judge: Judge) -> float | None:
    if tried is None or tried.failed:
        return None
    return tried.seconds if judge.by_seconds else tried.value


def _judged_text(tried: Tried | None, judge: Judge) -> str:
    if tried is None or tried.failed:
        return "without a result"
    value = _judged(tried, judge)
    if value is None:
        return "missed it" if judge.by_seconds else "diverged"
    return number(value) if judge.by_seconds else metric_value(value)


def _best_options(own: Contest) -> Entry:
    if own.best is None:
        return Entry(text="no trial has a result", value=None)
    options = own.best.trial.typed_options
    text = " ".join(f"{name}={option_text(value)}" for name, value in options.items())
    values: dict[str, Scalar] = {
        name: option_text(value) if isinstance(value, list | tuple) else value for name, value in options.items()
    }
    return Entry(text=text or "the defaults", value=values)


def _seconds(tried: Tried | None) -> Entry:
    if tried is None or tried.failed:
        return NOTHING
    return Entry(text="missed" if tried.seconds is None else number(tried.seconds), value=tried.seconds)


def _value(tried: Tried | None) -> Entry:
    if tried is None or tried.failed:
        return NOTHING
    return Entry(text="diverged" if tried.value is None else metric_value(tried.value), value=tried.value)


def _reached(own: Contest) -> Entry:
    count = sum(tried.seconds is not None for tried in own.tried)
    return Entry(text=f"{count}/{len(own.tried)}", value=count)


def _spread(own: Contest, judge: Judge, lower_is_better: bool) -> Entry:
    values = spread(own.tried, judge.by_seconds)
    if not values:
        return NOTHING
    best, worst = (values[0], values[-1]) if lower_is_better else (values[-1], values[0])
    shown: dict[str, Scalar] = {"worst": worst, "median": median(values), "best": best}
    form = number if judge.by_seconds else metric_value
    return Entry(text=", ".join(map(form, (worst, median(values), best))), value=shown)


def _lost(own: Contest) -> Entry:
    count = sum(tried.failed or tried.value is None for tried in own.tried)
    return Entry(text=str(count), value=count or None)


def _footer(judgement: Judgement, judge: Judge, ranges: Mapping[str, Sequence[Range]]) -> Iterable[str]:
    header = judgement.header
    trials = len(judgement.contests[0].tried)
    yield data_line(header.data_source)
    yield Lead(
        f"Budget: {trials} trials of each method on each number of nodes, {header.budget} each, seed "
        f"{header.seed}. Trial 1 has the workload's defaults."
    )
    for method, own in ranges.items():
        yield Lead(f"Ranges of {method}: {'; '.join(map(str, own))}.")
    yield from _edge_line(judgement, ranges)
    if not judge.by_seconds:
        yield from chance_line(judgement)
    failed = sum(tried.failed for contest in judgement.contests for tried in contest.tried)
    if failed:
        yield Caution(
            f"Failed: {failed} trials have no finished run, or no replay of it, so the methods had unequal budgets."
        )
    yield Caution(
        "One seed: the best of many trials is partly luck. Only the test split of `istbench compare` tells "
        "how good the options are."
    )
    yield "How to read this table: docs/tune.md"


def chance_line(judgement: Judgement) -> Iterable[str]:
    """The rows whose best trial is within two standard errors of an evaluation of their defaults."""
    error, close = judgement.error, list[str]()
    for own in judgement.contests:
        values = [
            tried.value for tried in (own.best, own.defaults) if tried is not None and tried.value is not None
        ]
        chosen = own.best is not own.defaults and len(values) == 2
        if error is not None and chosen and abs(values[0] - values[1]) < 2 * max(map(error.at, values)):
            close.append(f"{own.method} on {count_nodes(own.nodes)}")
    if close and error is not None:
        yield Caution(
            f"Best trials within two standard errors of an evaluation ({error.samples:,} samples) of the defaults: "
            f"{', '.join(close)}. Their gain may be chance."
        )


def _edge_line(judgement: Judgement, ranges: Mapping[str, Sequence[Range]]) -> Iterable[str]:
    """The best values at an end of their ranges: a wider range may have better ones."""
    found: dict[str, None] = {}
    for own in judgement.contests:
        for one in ranges[own.method] if own.best is not None else ():
            value = own.best.trial.typed_options.get(one.name) if own.best is not None else None
            least = one.whole and value == 1  # there is nothing below
            if value is not None and not least and not one.at(_EDGE) < value < one.at(1 - _EDGE):
                found[f"{own.method} {one.name}={option_text(value)}"] = None
    if found:
        yield Caution(f"At an end of its range: {', '.join(found)}. A wider --range may hold a better value.")


def tuning_record(
    judgement: Judgement, judge: Judge, ranges: Mapping[str, Sequence[Range]], suite: Path | None
) -> dict[str, Any]:
    """The object that `istbench tune --json` prints; null for a diverged metric and for a missed target."""
    header, metric = judgement.header, judgement.metric
    return {
        "workload": header.workload,
        "metric": metric.name,
        "lower_is_better": metric.lower_is_better,
        "judged_by": judge.words(metric.name, header.budget),
        "target": judge.target,
        "cluster": judge.cluster and judge.cluster.name,
        "budget": header.budget,
        "seed": header.seed,
        "held_out": header.config.held_out or None,
        "data_seen": header.data_source.seen,
        "trials": len(judgement.contests[0].tried),
        "ranges": {method: [dataclasses.asdict(own) for own in found] for method, found in ranges.items()},
        "methods": [
            {
                "method": contest.method,
                "nodes": contest.nodes,
                "best": None if contest.best is None else _tried_record(contest.best, metric),
                "trials": [_tried_record(tried, metric) for tried in contest.tried],
            }
            for contest in judgement.contests
        ],
        "suite": None if suite is None else str(suite),
    }


def _tried_record(tried: Tried, metric: Metric) -> dict[str, Any]:
    return {
        "number": tried.trial.number,
        "options": tried.trial.typed_options,
        "cell": tried.cell or None,
        "failed": tried.failed,
        metric.name: tried.value,
        "seconds": tried.seconds,
    }
