"""Seconds of a candidate on a cluster, by local steps and by the bandwidth of its links."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.scale import scale
from istbench.cluster.trace import COMPUTE, MARK, STEP, Floats, Trace, round_ends
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.steps_to_target import FURTHEST

BANDWIDTHS = (0.8, 0.9, 1.0, 1.1, 1.2)
"""Factors of the bandwidth at which a candidate is replayed; others between them are interpolated."""

_POINTS = 24
_UNKNOWN_COMPUTING = (0.9, 1.1)  # where the trace or the profile lacks the speed of memory


@dataclass(frozen=True, kw_only=True)
class CandidateClock:
    """A candidate on a cluster.

    Attributes:
        steps: numbers of local steps, rising from 0 [points].
        seconds: to each of them by `BANDWIDTHS` [bandwidths, points].
        computing, exposed: shares of the time at the cluster's own bandwidth that a node computes, and that it
            waits for messages which no computing hides; mean over nodes.
        low, high: the range of the computing by the model of the two machines, as factors. Candidates that the
            same machine recorded share the position in it.
        steady: the smallest factor by which the machine's speed at the time of this recording may differ.
        mean_error: the standard error of the mean seconds of the recorded steps, as a share of them.
    """

    steps: Floats
    seconds: Floats
    computing: float
    exposed: float
    low: float
    high: float
    steady: float
    mean_error: float

    def at(self, steps: Floats, bandwidth: Floats, computing: Floats) -> Floats:
        """Seconds to `steps` with these factors of the bandwidth and of the seconds of computing [draws]."""
        by_bandwidth = np.stack([self._to(steps, row) for row in self.seconds])
        # Messages take time in proportion to 1 / bandwidth.
        place = np.interp(1 / bandwidth, 1 / np.array(BANDWIDTHS[::-1]), np.arange(len(BANDWIDTHS))[::-1])
        left = np.clip(np.floor(place).astype(int), 0, len(BANDWIDTHS) - 2)
        below, above = (by_bandwidth[left + side, np.arange(len(steps))] for side in (0, 1))
        share = place - left
        own = by_bandwidth[BANDWIDTHS.index(1.0)]
        with np.errstate(invalid="ignore"):
            seconds = below * (1 - share) + above * share + (computing - 1) * self.computing * own
        return np.where(np.isfinite(steps), seconds, np.inf)

    def _to(self, steps: Floats, seconds: Floats) -> Floats:
        found = np.interp(steps, self.steps, seconds)
        rate = (seconds[-1] - seconds[-2]) / (self.steps[-1] - self.steps[-2])
        return np.where(steps > self.steps[-1], seconds[-1] + (steps - self.steps[-1]) * rate, found)


def candidate_clock(candidate: Candidate, profile: ClusterProfile) -> CandidateClock:
    """`candidate`, which has a trace, on `profile`.

    Raises:
        UserError: if the trace cannot be replayed there.
    """
    trace = candidate.trace
    assert trace is not None
    steps = _points(trace.round_steps, candidate.steps_probed)
    times = [cluster_time(trace, profile.with_links(factor), steps) for factor in BANDWIDTHS]
    own = times[BANDWIDTHS.index(1.0)]
    low, high, steady = _computing(trace, profile)
    return CandidateClock(
        steps=np.array(steps, dtype=float),
        seconds=np.array([time.seconds for time in times]),
        computing=own.compute,
        exposed=own.communication,
        low=low,
        high=high,
        steady=steady,
        mean_error=mean_error(trace),
    )


def seconds_to(trace: Trace, profile: ClusterProfile, steps: float) -> float:
    """Seconds to a finite number of local `steps`, which may be a fraction, on `profile`."""
    rounds, rest = divmod(steps, trace.round_steps)
    start = int(rounds) * trace.round_steps
    before, after = cluster_time(trace, profile, [start, start + trace.round_steps]).seconds
    return before + rest / trace.round_steps * (after - before)


def mean_error(trace: Trace) -> float:
    """The standard error of the mean seconds that a recorded step computes, as a share of them.

    The spread is that of steps that end no round, since an exchange computes too; if there are none, of rounds.
    0 of a planned trace, whose steps are equal, and of a trace with fewer than two of both.
    """
    means, squares = 0.0, 0.0
    for events in trace.nodes:
        inside, rounds = _computed(events)
        own = inside if len(inside) > 1 else rounds
        if len(own) < 2:
            return 0.0
        means += own.mean()
        squares += own.var(ddof=1) / len(own)
    return float(np.sqrt(squares) / means) if means > 0 else 0.0


def mean_step_s(trace: Trace) -> float:
    """The mean seconds that a local step computes, over nodes: of steps that end no round, or of all if all do."""
    steps = [_computed(events)[0] for events in trace.nodes]
    if not all(map(len, steps)):
        return trace.computing_s / max(1, trace.steps)
    return float(np.mean([own.mean() for own in steps]))


def at_mean_pace(traces: Sequence[Trace], profile: ClusterProfile) -> Trace:
    """The first of `traces`, which computes as fast on `profile` as their steps do on average.

    All are of one candidate, each recorded at another time: a machine is faster at some times than at others.

    Raises:
        UserError: if one cannot be scaled to `profile`.
    """
    paces = [mean_step_s(trace) * scale(trace, profile).compute for trace in traces]
    if not paces[0] > 0:
        return traces[0]
    factor = float(np.average(paces, weights=[trace.steps for trace in traces])) / paces[0]
    nodes = [events.copy() for events in traces[0].nodes]
    for events in nodes:
        events["seconds"][events["code"] == COMPUTE] *= factor
    return dataclasses.replace(traces[0], nodes=tuple(nodes))


def _computed(events: NDArray[Any]) -> tuple[Floats, Floats]:
    """Seconds that a node computes in each step that ends no round, and in each round."""
    marks = np.flatnonzero(events["code"] == MARK)
    spent = np.cumsum(np.where(events["code"] == COMPUTE, events["seconds"], 0.0))[marks]
    kinds = events["kind"][marks]
    ends = round_ends(kinds)
    inside = np.setdiff1d(np.flatnonzero(kinds == STEP), ends)
    return np.diff(spent, prepend=0.0)[inside], np.diff(spent[ends], prepend=0.0)


def _points(round_steps: int, probed: int) -> list[int]:
    """Ends of rounds from 0 to the furthest step that a draw may reach."""
    rounds = max(2.0, FURTHEST * probed / round_steps)
    return [0, *(np.unique(np.geomspace(1, rounds, _POINTS).astype(int)) * round_steps).tolist()]


def _computing(trace: Trace, profile: ClusterProfile) -> tuple[float, float, float]:
    """The range of the seconds of computing that candidates share, and the factor of this recording alone."""
    scaled, work = scale(trace, profile), trace.meta.work
    if scaled.low is None or scaled.high is None or work is None:
        return (*_UNKNOWN_COMPUTING, 1.0)
    steady = _steady([moment.seconds(work) for moment in trace.meta.moments])
    return scaled.low / steady / scaled.compute, scaled.high * steady / scaled.compute, steady


def _steady(seconds: Sequence[float]) -> float:
    """The smallest factor between the mean and a measurement of the same work, as in `cluster.scale`."""
    return float(np.sqrt(min(seconds) / max(seconds))) if seconds and min(seconds) > 0 else 1.0
