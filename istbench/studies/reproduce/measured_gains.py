"""Samples a second of a method over those of another one, measured, beside the published speed-ups."""

from collections.abc import Sequence

import msgspec

from istbench.report.tables.numbers import number
from istbench.results.stats import estimate
from istbench.studies.reproduce.clocks import MeasuredClock
from istbench.studies.reproduce.curves import node_differences
from istbench.studies.reproduce.figures import SpeedUpFigure, read_speed_ups
from istbench.studies.reproduce.matching import has, is_of, network_words, nodes_differ
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Comparison, Difference, Subject
from istbench.studies.reproduce.values import range_text


class MeasuredGains(msgspec.Struct, frozen=True, kw_only=True, tag="measured_gains"):
    """Published speed-ups in samples a second, beside the train seconds of our runs.

    sources: names of the papers whose figures count.
    """

    sources: tuple[str, ...]

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        figures = [one for one in read_speed_ups(PUBLISHED / "speedups.csv") if one.paper in self.sources]
        pairs = [
            (figure, one, over)
            for figure in figures
            for one in subjects
            if one.request.method == figure.method
            and is_of(figure, one)
            and has(one.request.method_options, figure.method_options)
            for over in subjects
            if over.request.method == figure.over
            and is_of(figure, over)
            and has(over.request.method_options, figure.over_options)
        ]
        return Comparison(
            rows=tuple(_row(*pair) for pair in pairs),
            notes=tuple(dict.fromkeys(f"Published: {figure.note}." for figure, _, _ in pairs if figure.note)),
            differences=(
                MeasuredClock().put(subjects, ()).difference,
                Difference(
                    aspect="bandwidth", text="ours is that of your links; `istbench doctor --hosts` measures it."
                ),
                *node_differences((figure, one) for figure, one, _ in pairs),
            ),
        )


def _row(figure: SpeedUpFigure, subject: Subject, over: Subject) -> Compared:
    theirs, own = _seconds_a_sample(over), _seconds_a_sample(subject)
    seeds = sorted(theirs.keys() & own.keys())
    ours = estimate([theirs[seed] / own[seed] for seed in seeds]) if seeds else None
    bandwidth = "bandwidth not given" if figure.gbit_s is None else f"{figure.gbit_s:g} Gbit/s"
    return Compared(
        method=subject.label,
        network=network_words(figure) or figure.workload,
        nodes=subject.request.nodes,
        what=f"times the samples/s of {over.request.method}, {bandwidth}",
        published=figure.speedup,
        published_text="no number" if figure.speedup is None else number(figure.speedup),
        ours=ours,
        ours_text="not trained" if ours is None else number(ours.median),
        planned=min(subject.seeds, over.seeds),
        trained=len(seeds),
        reached=len(seeds),
        spread_text=range_text(ours),
        aspects=nodes_differ(figure, subject),
    )


def _seconds_a_sample(subject: Subject) -> dict[int, float]:
    """By seed, train seconds of a run over the samples of all its nodes; none without seconds."""
    ends = {run.header.seed: (run.curve.seconds[-1], run.curve.evaluations[-1].samples) for run in subject.runs}
    return {seed: seconds / samples for seed, (seconds, samples) in ends.items() if seconds > 0 and samples > 0}
