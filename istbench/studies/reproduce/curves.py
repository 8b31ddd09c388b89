"""Seconds to a level, and the speed-ups that follow from them, beside those of a paper."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from istbench.report.palette import MethodStyle, method_styles
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.report.tables.numbers import number
from istbench.results.metrics import level_text
from istbench.studies.reproduce.clocks import Clock, ClockedSubjects
from istbench.studies.reproduce.figures import Figure, SpeedUpFigure, read_rows
from istbench.studies.reproduce.matching import beside, network_words, node_differences, published_notes, row_of
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Comparison, Subject
from istbench.studies.reproduce.speedups import speedup_row
from istbench.studies.reproduce.tables import further_table, sources_of
from istbench.studies.reproduce.values import estimate_of, is_rough, missed_text, range_text, seconds_to

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
            for figure in read_rows(PUBLISHED / "figures.csv", Figure)
            if figure.paper in self.sources and figure.workload == self.workload and figure.seconds is not None
        ]
        speedups = [
            figure
            for figure in read_rows(PUBLISHED / "speedups.csv", SpeedUpFigure)
            if figure.paper in self.sources and figure.workload == self.workload and figure.level is not None
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
    values = seconds_to(subject, figure.metric, figure.level)
    ours = estimate_of(values)
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
        if (ours := estimate_of(seconds_to(subject, figure.metric, level))) is not None
        and math.isfinite(ours.median)
    ]
    if found:
        yield Series(
            label=subject.label, style=MethodStyle(colour=style.colour, line="-", marker=style.marker),
            x=tuple(level for level, _ in found), y=tuple(ours.median for _, ours in found),
            low=tuple(ours.low for _, ours in found),
            high=tuple(ours.high if math.isfinite(ours.high) else ours.median for _, ours in found),
        )  # fmt: skip
