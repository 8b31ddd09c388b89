"""Speed-ups of a method over another one, beside those that a paper claims."""

import dataclasses
import math
from collections.abc import Sequence

import msgspec

from istbench.report.tables.numbers import number
from istbench.results.metrics import level_text, value_text
from istbench.results.stats import Estimate, estimate, speed_up
from istbench.studies.reproduce.clocks import Clock
from istbench.studies.reproduce.figures import SpeedUpFigure, read_rows
from istbench.studies.reproduce.matching import beside, is_over, node_differences, published_notes, row_of
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Comparison, Subject
from istbench.studies.reproduce.values import (
    best_of,
    is_rough,
    measuring,
    metric_of,
    missed_text,
    range_text,
    seconds_to,
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
        figures = [one for one in read_rows(PUBLISHED / "speedups.csv", SpeedUpFigure) if one.paper == self.source]
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
    falls = metric_of(over.runs[0], metric).lower_is_better
    return best / _SHARE_OF_BEST if falls else best * _SHARE_OF_BEST


def _ours(
    subject: Subject, over: Subject, metric: str, level: float | None
) -> tuple[Estimate | None, str, int, str]:
    """The speed-up over the seeds that both trained, its text, how many of them reach `level`, and their range.

    In the range, 0 is a miss of `subject`.
    """
    if level is None:
        return None, "not trained", 0, ""
    theirs = dict(zip(_seeds(over, metric), seconds_to(over, metric, level), strict=True))
    own = dict(zip(_seeds(subject, metric), seconds_to(subject, metric, level), strict=True))
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
    missed = estimate([own[seed] for seed in both])
    ratios = estimate([0.0 if math.isinf(own[seed]) else theirs[seed] / own[seed] for seed in both])
    ours = dataclasses.replace(estimate([math.inf] * found.pairs), reached=reached)
    return ours, missed_text(subject, metric, missed), reached, range_text(ratios)


def _seeds(subject: Subject, metric: str) -> list[int]:
    return [run.header.seed for run in measuring(subject, metric)]
