"""Seconds to a level, speed-ups and final values, beside those of a paper."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from istbench.report.palette import MethodStyle, method_styles
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.report.tables.numbers import NumberForm, metric_value, number
from istbench.results.curves import Curve, time_to_target
from istbench.results.metrics import level_text, metric_named, value_text
from istbench.results.stats import SeedMedian, median, seed_median, speed_up
from istbench.studies.reproduce.clocks import Clock, ClockedSubjects
from istbench.studies.reproduce.figures import (
    Figure,
    SpeedUpFigure,
    beside,
    is_over,
    network_words,
    node_differences,
    published,
    published_notes,
    row_of,
)
from istbench.studies.reproduce.paper import Compared, Comparison, Subject
from istbench.studies.reproduce.tables import further_table, sources_of

_FITTED = " (fitted)"
_PARALLEL = "ddp"


class Curves(msgspec.Struct, frozen=True, kw_only=True, tag="curves"):
    """Published seconds to levels of a metric, and published speed-ups to a level.

    Attributes:
        sources: names of the papers whose figures count. workload: theirs.
        clock: of our seconds. title: of the picture, whose file has the name of the workload.
    """

    sources: tuple[str, ...]
    workload: str
    clock: Clock
    title: str

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        figures = [
            figure
            for figure in published(Figure, self.sources)
            if figure.workload == self.workload and figure.seconds is not None
        ]
        speedups = [
            figure
            for figure in published(SpeedUpFigure, self.sources)
            if figure.workload == self.workload and figure.level is not None
        ]
        timed = self.clock.put(subjects, figures)
        pairs = [(figure, one) for figure in figures for one in timed.subjects if beside(figure, one)]
        rows = [_seconds_row(figure, one, fitted=figure in timed.fixed) for figure, one in pairs]
        claimed, derived = (
            [row for figure in own for one in timed.subjects if (row := speedup_row(figure, one, timed.subjects))]
            for own in (speedups, _speed_ups_of(figures))
        )
        return Comparison(
            rows=(*rows, *claimed),
            notes=(
                *timed.notes,
                *_spread(rows),
                *left_out(figures, timed.subjects),
                *published_notes([*(figure for figure, _ in pairs), *speedups]),
            ),
            cautions=timed.cautions,
            tables=(further_table(f"{self.title}: times as fast as {_PARALLEL}", derived),)
            if any(row.trained for row in derived)
            else (),
            plots=tuple(self._plots(pairs, timed)),
            differences=(timed.difference, *node_differences(pairs)),
            problems=timed.problems,
        )

    def _plots(self, pairs: Sequence[tuple[Figure, Subject]], timed: ClockedSubjects) -> Iterable[Plot]:
        """Published and our seconds against the level: a panel for each network."""
        trained = [(figure, one) for figure, one in pairs if one.runs]
        if not trained:
            return
        styles = method_styles({(one.request.method, one.label) for _, one in pairs})
        panels = []
        for network in dict.fromkeys(network_words(figure) for figure, _ in trained):
            own = [(figure, one) for figure, one in trained if network_words(figure) == network]
            series = [line for one in _once(one for _, one in own) for line in _lines(one, own, styles[one.label])]
            panels.append(Panel(title=network or self.workload, series=tuple(series)))
        first = trained[0][0]
        yield Plot(
            stem=self.workload,
            title=self.title,
            subtitle=f"{timed.difference.text} Published: dotted lines. "
            f"Data: {', '.join(sorted({source.seen for source in sources_of(one for _, one in trained)}))}",
            kind="lines",
            x_label=f"test {first.metric}",
            y_label="seconds",
            y_scale="log",
            panels=tuple(panels),
        )


def _seconds_row(figure: Figure, subject: Subject, *, fitted: bool) -> Compared:
    assert figure.level is not None
    assert figure.seconds is not None
    values = list(seconds_to(subject, figure.metric, figure.level).values())
    ours = seed_median_of(values)
    text = "not trained" if ours is None else number(ours.median)
    if ours is not None and math.isinf(ours.median):
        text = missed_text(subject, figure.metric, ours)
    return row_of(
        figure,
        subject,
        method=figure.label,
        what=f"s to {figure.metric} {level_text(figure.level)}",
        published=figure.seconds,
        published_text=number(figure.seconds),
        ours=ours,
        ours_text=text + (_FITTED if fitted else ""),
        trained=len(values),
        reached=0 if ours is None else ours.reached,
        spread_text=range_text(ours, number),
        rough=is_rough(subject, figure.metric, figure.level),
    )


def _speed_ups_of(figures: Sequence[Figure]) -> Iterable[SpeedUpFigure]:
    """The speed-ups over data parallel that published seconds give, at each level of both curves."""
    for figure in figures:
        for parallel in figures:
            if (
                parallel.method == _PARALLEL != figure.method
                and (parallel.options, parallel.level) == (figure.options, figure.level)
                and figure.seconds is not None
                and parallel.seconds is not None
            ):
                yield SpeedUpFigure(
                    paper=figure.paper, workload=figure.workload, options=figure.options, method=figure.method,
                    method_options=figure.method_options, nodes=figure.nodes, over=_PARALLEL, metric=figure.metric,
                    level=figure.level, speedup=parallel.seconds / figure.seconds,
                )  # fmt: skip


def _spread(rows: Sequence[Compared]) -> Iterable[str]:
    """A line for each network: by method, the ratios of predicted seconds, and of speed-ups over data parallel.

    Methods that are too slow and others that are too fast would make a good median together.
    """
    for network in dict.fromkeys(row.network for row in rows):
        own = [row for row in rows if row.network == network]
        predicted = [row for row in own if not row.ours_text.endswith(_FITTED)]
        if seconds := _by_method(predicted, lambda row: row.ratio):
            words = f"{network}: our seconds over the published ones, in the median: {seconds}"
            faster = [row for row in predicted if row.method != _PARALLEL]
            if speed := _by_method(faster, lambda row, own=own: _speedup_ratio(row, own)):  # type: ignore[misc]
                words += f"; our speed-up over ddp, over the published one: {speed}"
            yield f"{words.removeprefix(': ').capitalize() if not network else words}."


def _by_method(rows: Sequence[Compared], ratio: Callable[[Compared], float | None]) -> str:
    """The median of the ratios of each method, which some of its points may lack; empty without any."""
    found = []
    for method in dict.fromkeys(row.method.split()[0] for row in rows):
        points = [row for row in rows if row.method.split()[0] == method]
        if values := [value for row in points if (value := ratio(row)) is not None]:
            middle, low, high = (number(value) for value in (statistics.median(values), min(values), max(values)))
            found.append(f"{method} {middle} ({len(values)} of {len(points)} points, {low} to {high})")
    return ", ".join(found)


def _speedup_ratio(row: Compared, rows: Sequence[Compared]) -> float | None:
    """Our speed-up over `ddp` to the level of `row`, over the published one."""
    parallel = next((one for one in rows if one.method == _PARALLEL and one.what == row.what), None)
    if parallel is None or row.method == _PARALLEL or row.ratio is None or parallel.ratio is None:
        return None
    return parallel.ratio / row.ratio


def left_out(figures: Sequence[Figure], subjects: Sequence[Subject]) -> Iterable[str]:
    """A line that counts the `figures` beside which no subject stands."""
    alone = [figure for figure in figures if not any(beside(figure, one) for one in subjects)]
    if alone:
        labels = ", ".join(dict.fromkeys(figure.label for figure in alone))
        yield f"Left out: {len(alone)} published figures whose method is not trained at this scale ({labels})."


def _once(subjects: Iterable[Subject]) -> list[Subject]:
    found: list[Subject] = []
    for one in subjects:
        if one not in found:
            found.append(one)
    return found


def _lines(subject: Subject, pairs: Sequence[tuple[Figure, Subject]], style: MethodStyle) -> Iterable[Series]:
    figures = sorted((figure for figure, one in pairs if one == subject), key=lambda figure: figure.level or 0.0)
    levels = tuple(figure.level for figure in figures if figure.level is not None)
    theirs = tuple(figure.seconds for figure in figures if figure.seconds is not None)
    dotted = MethodStyle(colour=style.colour, line=":", marker=style.marker)
    # Both lines share a label, so the legend has it once, as the last one of them is drawn: ours.
    yield Series(label=subject.label, style=dotted, x=levels, y=theirs, low=theirs, high=theirs)
    found = [
        (level, ours)
        for level, figure in zip(levels, figures, strict=True)
        if (ours := seed_median_of(list(seconds_to(subject, figure.metric, level).values()))) is not None
        and math.isfinite(ours.median)
    ]
    if found:
        yield Series(
            label=subject.label, style=MethodStyle(colour=style.colour, line="-", marker=style.marker),
            x=tuple(level for level, _ in found), y=tuple(ours.median for _, ours in found),
            low=tuple(ours.low for _, ours in found),
            high=tuple(ours.high if math.isfinite(ours.high) else ours.median for _, ours in found),
        )  # fmt: skip


class Finals(msgspec.Struct, frozen=True, kw_only=True, tag="finals"):
    """Published final values of metrics. A figure that names no options stands beside every row of its method.

    Attributes:
        sources: names of the papers whose figures count. names: ours of methods that the paper calls otherwise.
    """

    sources: tuple[str, ...]
    names: dict[str, str] = {}

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        pairs = [
            (figure, one)
            for figure in published(Figure, self.sources)
            if figure.value is not None
            for one in subjects
            if beside(figure, one, self.names)
        ]
        budgets = {run.header.budget for _, one in pairs for run in one.runs}
        trained = (f"Our budgets: {', '.join(sorted(budgets))}.",) if budgets else ()
        return Comparison(
            rows=tuple(self._row(figure, one) for figure, one in pairs),
            notes=(*trained, *published_notes(figure for figure, _ in pairs)),
            differences=tuple(node_differences(pairs)),
        )

    def _row(self, figure: Figure, subject: Subject) -> Compared:
        assert figure.value is not None
        finals = ((curve, curve.final()) for curve in curves_of(subject, figure.metric).values())
        values = [curve.metric.worst if final is None else final for curve, final in finals]
        ours = seed_median_of(values)
        known = figure.method not in self.names
        return row_of(
            figure,
            subject,
            method=subject.label if known else f"{subject.label} ({figure.method})",
            what=f"final {figure.metric}",
            published=figure.value,
            published_text=f"{figure.value:g}",
            ours=ours,
            ours_text="not trained" if ours is None else metric_value(ours.median),
            trained=len(values),
            reached=len(values),
            spread_text=range_text(ours, metric_value),
        )


_SHARE_OF_BEST = 0.95


class SpeedUps(msgspec.Struct, frozen=True, kw_only=True, tag="speedups"):
    """Published speed-ups for which the paper names no level.

    Ours are to 95 % of the best value that the other method reaches.

    Attributes:
        source: name of the paper. clock: of our seconds.
    """

    source: str
    clock: Clock

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        figures = published(SpeedUpFigure, (self.source,))
        timed = self.clock.put(subjects, ())
        pairs = [
            (figure, one, row)
            for figure in figures
            for one in timed.subjects
            if (row := speedup_row(figure, one, timed.subjects)) is not None
        ]
        return Comparison(
            rows=tuple(row for _, _, row in pairs),
            notes=(*timed.notes, *published_notes(figures)),
            cautions=timed.cautions,
            differences=(timed.difference, *node_differences((figure, one) for figure, one, _ in pairs)),
            problems=timed.problems,
        )


def speedup_row(figure: SpeedUpFigure, subject: Subject, subjects: Sequence[Subject]) -> Compared | None:
    """The row of `figure` if `subject` is its method and `subjects` have the other one on as many nodes."""
    others = (one for one in subjects if is_over(figure, one) and one.request.nodes == subject.request.nodes)
    over = next(others, None)
    if over is None or not beside(figure, subject):
        return None
    level = figure.level if figure.level is not None else _level_of(over, figure.metric)
    ours, text, reached, spread_text = _ours(subject, over, figure.metric, level)
    where = "" if level is None else f" to {figure.metric} {_level_words(figure, level)}"
    return row_of(
        figure,
        subject,
        method=subject.label,
        what=f"times as fast as {over.label}{where}",
        published=figure.speedup,
        published_text="no number" if figure.speedup is None else number(figure.speedup),
        ours=ours,
        ours_text=text,
        planned=min(subject.seeds, over.seeds),
        trained=len({run.header.seed for run in subject.runs} & {run.header.seed for run in over.runs}),
        reached=reached,
        spread_text=spread_text,
        rough=level is not None and any(is_rough(one, figure.metric, level) for one in (subject, over)),
    )


def _level_words(figure: SpeedUpFigure, level: float) -> str:
    return level_text(level) if figure.level is not None else value_text(level)


def _level_of(over: Subject, metric: str) -> float | None:
    best = best_of(over, metric)
    if best is None:
        return None
    falls = next(iter(curves_of(over, metric).values())).metric.lower_is_better
    return best / _SHARE_OF_BEST if falls else best * _SHARE_OF_BEST


def _ours(
    subject: Subject, over: Subject, metric: str, level: float | None
) -> tuple[SeedMedian | None, str, int, str]:
    """The speed-up over the seeds that both trained, its text, how many of them reach `level`, and their range.

    In the range, 0 is a miss of `subject`.
    """
    theirs, own = ({} if level is None else seconds_to(one, metric, level) for one in (over, subject))
    found = speed_up(theirs, own)
    if found is None:
        return None, "not trained", 0, ""
    both = sorted(theirs.keys() & own.keys())
    reached = sum(math.isfinite(theirs[seed]) and math.isfinite(own[seed]) for seed in both)
    if found.ratio is not None:
        ours = dataclasses.replace(found.ratio, reached=reached)
        return ours, number(ours.median), reached, range_text(ours)
    if found.baseline_missed:
        return None, f"{over.request.method} did not reach it", reached, ""
    missed = seed_median([own[seed] for seed in both])
    ratios = seed_median([0.0 if math.isinf(own[seed]) else theirs[seed] / own[seed] for seed in both])
    ours = dataclasses.replace(seed_median([math.inf] * found.pairs), reached=reached)
    return ours, missed_text(subject, metric, missed), reached, range_text(ratios)


def curves_of(subject: Subject, name: str) -> dict[int, Curve]:
    """By seed, the curve of each run of `subject` that evaluated the metric `name`.

    The metric has the direction that the run recorded, else that of its name.
    """
    found = {}
    for run in subject.runs:
        own = run.header.own_metric
        if name in run.curve.evaluations[-1].metrics:
            found[run.header.seed] = run.curve.on_metric(own if own.name == name else metric_named(name))
    return found


def seconds_to(subject: Subject, name: str, level: float) -> dict[int, float]:
    """By seed, the seconds of `subject` to `level` of the metric `name`; infinite for a miss."""
    there = {seed: time_to_target(curve, level) for seed, curve in curves_of(subject, name).items()}
    return {seed: reached.seconds if reached else math.inf for seed, reached in there.items()}


def is_rough(subject: Subject, name: str, level: float) -> bool:
    """Whether a run of `subject` reached `level` before its first evaluation."""
    found = (time_to_target(curve, level) for curve in curves_of(subject, name).values())
    return any(there is not None and there.from_start for there in found)


def best_of(subject: Subject, name: str) -> float | None:
    """The best value of the metric `name` in each run of `subject`, as the median; None without one."""
    known = [best for curve in curves_of(subject, name).values() if (best := curve.best()) is not None]
    return median(known) if known else None


def seed_median_of(values: Sequence[float]) -> SeedMedian | None:
    """The median over seeds; None without values."""
    return seed_median(values) if values else None


def missed_text(subject: Subject, name: str, ours: SeedMedian) -> str:
    """The entry of a level that at least half of the seeds missed."""
    best = best_of(subject, name)
    known = "" if best is None else f", best {value_text(best)}"
    who = "not reached" if ours.reached == 0 else f"reached by {ours.reached} of {ours.seeds} seeds"
    return f"{who}{known}"


def range_text(ours: SeedMedian | None, form: NumberForm = number) -> str:
    """The range over seeds; empty for fewer than two."""
    if ours is None or ours.seeds < 2:
        return ""
    return f"{_bound(ours.low, form)}–{_bound(ours.high, form)}"


def _bound(value: float, form: Callable[[float], str]) -> str:
    return "∞" if math.isinf(value) else form(value)
