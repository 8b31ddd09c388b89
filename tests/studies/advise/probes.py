"""Candidates made by hand: their curves, their traces, and clocks that need no replay."""

import msgspec
import numpy as np
from fake_clusters import BARE
from fake_runs import averaging_trace, evaluation

from istbench.results.curves import Curve
from istbench.results.metrics import Metric
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.draws import Drawn, seed_spread
from istbench.studies.advise.seconds import BANDWIDTHS, CandidateClock
from istbench.studies.advise.steps_to_target import StepsToTarget

ACCURACY = Metric("accuracy")
LINKS = BARE.with_bandwidth(8e8)


def curve(points, metric=ACCURACY):
    """A curve through (step, value) pairs."""
    evaluations = tuple(
        msgspec.structs.replace(evaluation(step, float(step), None), metrics={metric.name: value})
        for step, value in points
    )
    return Curve(metric=metric, evaluations=evaluations, clock="train_s", seconds=tuple(map(float, dict(points))))


def straight(steps, level=0.8, every=10):
    """A curve that rises in a straight line to `level` at `steps`, and ends soon after."""
    return curve([(step, level * step / steps) for step in range(0, steps + 2 * every, every)])


def candidate(label, *, steps=(100,), method=None, compute=0.01, size=1_000_000, local_steps=1, **changed):
    """A candidate whose seeds reach 0.8 at `steps`, with an all-reduce of `size` bytes after each `local_steps`."""
    return Candidate(
        **{
            "method": method or label,
            "label": label,
            "command": ("istbench", "run", "speech", "--method", method or label),
            "curves": {seed: straight(reached) for seed, reached in enumerate(steps)},
            "trace": averaging_trace(2, compute=(compute,), size=size, local_steps=local_steps),
            **changed,
        }
    )


def clock(per_step, *, by_bandwidth=0.0, low=1.0, high=1.0, steady=1.0, computing=0.5, mean_error=0.0):
    """`per_step` seconds at the cluster's bandwidth, and the share `by_bandwidth` of them in proportion to it."""
    steps = np.array([0.0, 1000.0])
    seconds = np.array([steps * per_step * (1 - by_bandwidth + by_bandwidth / factor) for factor in BANDWIDTHS])
    return CandidateClock(
        steps=steps, seconds=seconds, computing=computing, exposed=1 - computing, low=low, high=high, steady=steady,
        mean_error=mean_error,
    )  # fmt: skip


def drawn(clocks, reached, *, draws=400, seed=0, **changed):
    """Draws of candidates by label: their clocks, and the steps that each seed needs, which probes have seen."""
    to_target = {
        label: StepsToTarget(
            by_seed=np.tile(np.array(steps, dtype=float)[:, None], draws), extrapolated=np.zeros(len(steps), bool)
        )
        for label, steps in reached.items()
    }
    spread, freedom = seed_spread(to_target.values())
    return Drawn(
        **{
            "candidates": tuple(Candidate(method=label, label=label) for label in clocks),
            "to_target": to_target,
            "clocks": clocks,
            "checks": {},
            "draws": draws,
            "seed": seed,
            "seed_spread": spread,
            "freedom": freedom,
            "run_spread": 0.0,
            **changed,
        }
    )
