"""What faults cost a run that starts again from its last checkpoint: computing that is lost, and restarts.

Faults of a node come at random with a constant rate, and each of them ends all nodes (Young, 1974; Daly, 2006). The
run then loses what it computed since the checkpoint, and the seconds of a restart, in which no further fault comes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.base.units import period_text

DRAWS = 2000
_MOST_FAULTS = 1000.0  # of a run, on average


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Faults of a cluster.

    Attributes:
        mtbf_s: mean seconds between two faults of one node. restart_s: seconds from a fault until training goes on.
        checkpoint_s: least seconds of training between two checkpoints.
    """

    mtbf_s: float
    restart_s: float
    checkpoint_s: float


@dataclass(frozen=True, kw_only=True)
class FaultyTimes:
    """Seconds of `DRAWS` runs with faults. `seconds` is the sum of `kept_s` and the other two.

    Attributes:
        kept_s: of computing without faults. lost_s, restarting_s: of each run [draws].
    """

    kept_s: float
    lost_s: NDArray[np.float64]
    restarting_s: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of each run [draws]."""
        return self.kept_s + self.lost_s + self.restarting_s


def with_faults(at: Sequence[float], finish_s: float, nodes: int, faults: Faults, seed: int = 0) -> FaultyTimes:
    """The times of a run of `finish_s` seconds on `nodes` nodes, where a checkpoint may follow at the seconds `at`.

    Raises:
        UserError: if faults come so often that the run would hardly get from one checkpoint to the next.
    """
    rate = nodes / faults.mtbf_s
    segments = np.diff([0.0, *_saved(at, finish_s, faults.checkpoint_s), finish_s])
    if _ended(rate * segments).sum() > _MOST_FAULTS:
        raise UserError(
            f"a fault of a node every {period_text(faults.mtbf_s)} would end {nodes} nodes over "
            f"{_MOST_FAULTS:,.0f} times in {finish_s:.3g} s of training; evaluate and save more "
            "often, or give a longer --mtbf"
        )
    random = np.random.default_rng(seed)
    lost, restarts = np.zeros(DRAWS), np.zeros(DRAWS)
    for length in segments.tolist():
        tries = random.geometric(math.exp(-rate * length), DRAWS) - 1
        # The seconds to a fault that comes within `length`: the inverse of their distribution.
        within = random.random(int(tries.sum())) * -math.expm1(-rate * length)
        np.add.at(lost, np.repeat(np.arange(DRAWS), tries), -np.log1p(-within) / rate)
        restarts += tries
    return FaultyTimes(kept_s=finish_s, lost_s=lost, restarting_s=restarts * faults.restart_s)


def expected_seconds(at: Sequence[float], nodes: int, faults: Faults) -> list[float]:
    """The seconds `at` of evaluations, rising, with faults: the means of what `with_faults` draws."""
    if not at:
        return []
    rate = nodes / faults.mtbf_s
    saved = np.array([0.0, *_saved(at, at[-1], faults.checkpoint_s)])
    last = np.maximum(np.searchsorted(saved, at) - 1, 0)  # of the checkpoints before each evaluation
    ended = np.array([0.0, *_ended(rate * np.diff(saved)).cumsum()])[last]
    ended += _ended(rate * (np.array(at) - saved[last]))
    seconds: list[float] = (ended * (1 / rate + faults.restart_s)).tolist()
    return seconds


def _ended(faults: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often segments are ended by a fault on average, if `faults` come in the time of each without faults."""
    return np.expm1(np.minimum(faults, 99.0))


def _saved(at: Sequence[float], finish_s: float, least_s: float) -> list[float]:
    """The seconds of checkpoints: of `at`, those before `finish_s` that lie `least_s` after the one before."""
    saved = [0.0]
    for second in sorted(at):
        if second < finish_s and second - saved[-1] >= least_s:
            saved.append(second)
    return saved[1:]
