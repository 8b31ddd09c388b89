"""The clock of our seconds: measured while training, or replayed on the papers' machines."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from istbench.base.errors import UserError
from istbench.base.sign_change import sign_change
from istbench.cluster.profile import ClusterProfile, at_bandwidth, bandwidth_text, load_profile
from istbench.cluster.trace_file import load_trace
from istbench.report.phrases import lower_bound_line
from istbench.report.tables.stalls import stall_lines
from istbench.results.load import Run
from istbench.results.on_cluster import run_on_cluster
from istbench.studies.reproduce.figures import Figure, beside, network_words
from istbench.studies.reproduce.paper import Difference, Subject

_NEAR, _EXACT = 1e-4, 1e-6  # of logarithms: of the value, and of the seconds
_CLOSE = 0.01  # a fitted point, as a share of its seconds

trace_of = functools.cache(load_trace)


@dataclass(frozen=True, kw_only=True)
class ClockedSubjects:
    """Subjects on a clock.

    Attributes:
        subjects: their runs have their curves on it.
        difference: the clock as a difference from the published runs.
        fixed: published figures to which the clock is fitted; ours equal them.
        notes, cautions: lines of a footer. problems: a line for each run without that clock.
    """

    subjects: tuple[Subject, ...]
    difference: Difference
    fixed: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class MeasuredClock(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """Train seconds, as measured on the machines that trained."""

    def put(self, subjects: Sequence[Subject], figures: Sequence[Figure]) -> ClockedSubjects:
        """The `subjects` as they are."""
        machines = sorted(
            {
                ", ".join(filter(None, [run.header.host.lab or run.header.host.name, run.header.host.cores_words]))
                for subject in subjects
                for run in subject.runs
            }
        )
        where = f": {'; '.join(machines)}" if machines else ""
        return ClockedSubjects(
            subjects=tuple(subjects),
            difference=Difference(aspect="machine", text=f"our seconds are measured, on your machines{where}."),
            cautions=tuple(stall_lines([run for subject in subjects for run in subject.runs])),
        )


@dataclass(frozen=True, kw_only=True)
class FittedPoint:
    """A published point that fixes a clock: the figure of these options and `level`."""

    method: str
    level: float
    options: Mapping[str, str] = field(default_factory=dict)
    method_options: Mapping[str, str] = field(default_factory=dict)

    def is_figure(self, figure: Figure) -> bool:
        """Whether `figure` is this point."""
        return (figure.method, figure.level, figure.options, figure.method_options) == (
            self.method, self.level, dict(self.options), dict(self.method_options),
        )  # fmt: skip


class ReplayedClock(msgspec.Struct, frozen=True, kw_only=True, tag="replayed"):
    """Seconds of replays on a cluster.

    Attributes:
        cluster: its profile. bandwidth: of its links, bits/s; None leaves the profile's.
        fitted: two published points. The first one fixes the speed of the nodes, the second one the bandwidth, so
            that replays give exactly their seconds. Every other point is then a prediction.
    """

    cluster: str
    bandwidth: float | None = None
    fitted: tuple[FittedPoint, FittedPoint] | None = None

    def put(self, subjects: Sequence[Subject], figures: Sequence[Figure]) -> ClockedSubjects:
        """Replay every run of `subjects`, on a clock that may be fitted to some of the published `figures`."""
        profile = load_profile(self.cluster)
        if self.bandwidth is not None:
            profile = at_bandwidth(profile, self.bandwidth)
        notes, cautions, fixed = list[str](), list[str](), tuple[Figure, ...]()
        clock = "our seconds are replayed, not measured"
        if self.fitted is not None:
            pairs = [_figure_and_run(point, subjects, figures) for point in self.fitted]
            fit = _fit(profile, pairs)
            if isinstance(fit, str):
                clock += ", on a cluster that is not fitted to the published ones"
                cautions.append(
                    f"Not fitted: {fit}. The seconds are those of {self.cluster} as its profile has it, far from "
                    "the published ones."
                )
            else:
                profile, fixed = fit, tuple(figure for figure, _ in pairs)
                words = " and ".join(
                    f"{_words(figure)} (our seed {run.header.seed})" for figure, run in pairs if run
                )
                notes.append(
                    f"Two published points, {words}, fix {self.cluster} at {profile.gflops:.3g} GFLOP/s in "
                    f"training and {bandwidth_text(profile.bandwidth_out, 3)} a link. "
                    "All other seconds are predicted from our steps and traces. That speed is not the hardware's: "
                    "it makes our steps as slow as theirs."
                )
        if not fixed:
            origin = "from its profile" if self.bandwidth is None else "the speed from its profile"
            speed = f"{profile.gflops:g} GFLOP/s and {bandwidth_text(profile.bandwidth_out)} a link"
            notes.append(f"Replayed on {profile.name}: {speed}, {origin}. Nothing is fitted.")
        problems: list[str] = []
        moved = tuple(
            dataclasses.replace(subject, runs=tuple(_replays(subject.runs, profile, problems)))
            for subject in subjects
        )
        devices = {run.header.config.device for subject in subjects for run in subject.runs}
        cautions += [line for device in sorted(devices) for line in lower_bound_line(device, profile)]
        return ClockedSubjects(
            subjects=moved,
            difference=Difference(aspect="clock", text=f"{clock}."),
            fixed=fixed,
            notes=tuple(notes),
            cautions=tuple(cautions),
            problems=tuple(problems),
        )


def _replays(runs: Sequence[Run], profile: ClusterProfile, problems: list[str]) -> list[Run]:
    moved = []
    for run in runs:
        try:
            moved.append(_replay(run, profile))
        except UserError as error:
            problems.append(f"{run.header.cell}: {error}")
    return moved


Clock = MeasuredClock | ReplayedClock
"""A clock of our seconds."""


def _replay(run: Run, profile: ClusterProfile) -> Run:
    if not run.directory.trace.exists():
        raise UserError("no trace to replay, which takes two whole rounds of training")
    return run_on_cluster(run, trace_of(run.directory.trace), profile, {})


def _figure_and_run(
    point: FittedPoint, subjects: Sequence[Subject], figures: Sequence[Figure]
) -> tuple[Figure, Run | None]:
    """The figure of `point`, and our run of the first seed that reaches its level and has a readable trace."""
    (figure,) = (figure for figure in figures if point.is_figure(figure))
    (subject,) = (one for one in subjects if beside(figure, one))
    reaching = [run for run in subject.runs if run.reached(point.level) is not None and _is_readable(run)]
    return figure, min(reaching, key=lambda run: run.header.seed, default=None)


def _fit(profile: ClusterProfile, pairs: Sequence[tuple[Figure, Run | None]]) -> ClusterProfile | str:
    """`profile` fitted to the figures and runs of `pairs`; a sentence if it cannot be."""
    missing = [_words(figure) for figure, run in pairs if run is None]
    if missing:
        return f"no run of ours reaches {' and '.join(missing)} yet"
    points = [(run, one.level, one.seconds) for one, run in pairs if run and one.level and one.seconds]
    found = fitted(profile, points)
    off = [abs(_seconds(run, found, level) / seconds - 1) for run, level, seconds in points]
    return found if max(off) < _CLOSE else "no speed and bandwidth give the seconds of both points"


def _is_readable(run: Run) -> bool:
    try:
        return run.directory.trace.exists() and trace_of(run.directory.trace) is not None
    except UserError:  # `put` names it
        return False


def _words(figure: Figure) -> str:
    return " ".join(filter(None, [network_words(figure), figure.label, f"at {figure.level:g}"]))


def fitted(start: ClusterProfile, points: Sequence[tuple[Run, float, float]]) -> ClusterProfile:
    """`start` with the speed and the bandwidth at which replays of two runs take their published seconds.

    points: of each its run, the level of the metric and the published seconds to it.
    """
    (by_speed, speed_level, speed_s), (by_links, links_level, links_s) = points

    def with_speed_for(bandwidth: float) -> ClusterProfile:
        profile = start.with_bandwidth(bandwidth)

        def over(gflops: float) -> float:
            there = dataclasses.replace(profile, gflops=gflops)
            return math.log(_seconds(by_speed, there, speed_level) / speed_s)

        return dataclasses.replace(profile, gflops=crossing(over, 0.01, 1e5))

    def over(bandwidth: float) -> float:
        return math.log(_seconds(by_links, with_speed_for(bandwidth), links_level) / links_s)

    return with_speed_for(crossing(over, 1e6, 1e12))


def _seconds(run: Run, profile: ClusterProfile, level: float) -> float:
    there = _replay(run, profile).reached(level)
    return there.seconds if there else math.inf


def crossing(over: Callable[[float], float], low: float, high: float) -> float:
    """The value between `low` and `high` where `over`, which falls, changes its sign, to four digits.

    An end, if `over` has the same sign everywhere.
    """
    ends = math.log(low), math.log(high)
    return math.exp(sign_change(lambda place: over(math.exp(place)), *ends, near=_NEAR, exact=_EXACT)[1])
