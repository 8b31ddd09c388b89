"""`cluster_s`: the train time of a traced run on another cluster, at any local step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from istbench.cluster.profile import ClusterProfile
from istbench.errors import UserError

if TYPE_CHECKING:
    from istbench.cluster.simulator import Replay
    from istbench.cluster.trace import Trace

# A synchronous method reaches its steady state in the first rounds; later repetitions take equally long. A sample
# that does not repeat itself after a few repetitions, up to `_STEADY` of its seconds, is repeated more often.
_FEW, _REPETITIONS = 3, 8
_STEADY = 1e-4


@dataclass(frozen=True, kw_only=True)
class ClusterTime:
    """The train time of a run on a cluster, and how its nodes spend it.

    Attributes:
        profile: the cluster.
        nodes: number of its machines.
        seconds: until the last node has done each requested number of local steps.
        compute, communication, idle: shares of the time as in `Replay`, mean over nodes.
        link_use: payload over capacity of the busiest link, in its busier direction.
        carrying: share of the busiest node's cores that messages take; 0 if the profile leaves it out.
        doubt: a reason to doubt the seconds in the trace, in a few words; empty without a reason.
    """

    profile: ClusterProfile
    nodes: int
    seconds: tuple[float, ...]
    compute: float
    communication: float
    idle: float
    link_use: float
    carrying: float
    doubt: str = ""


def cluster_time(
    trace: "Trace", profile: ClusterProfile, steps: Sequence[int], *, steady: bool = True
) -> ClusterTime:
    """Train time on `profile` at each number of local `steps`, also inside a round.

    After a step inside a round comes the exchange that closes the round, as at the end of a run's budget. The
    replay repeats the sample until it covers all steps or reaches a steady state. Each later repetition takes as
    long as the last replayed one.

    steady: end the replay as soon as a repetition repeats the one before, or else after eight.

    Raises:
        UserError: as `replay` does, and for a trace without marks of local steps.
    """
    sample = trace.steps
    if not sample:
        raise UserError("the trace marks no local steps; record it again with `istbench run --again`")
    found, reached = _replayed(trace, profile, max(steps, default=0), steady=steady)
    replayed = len(reached) - 1
    period = reached[replayed] - reached[replayed - sample]

    def passed(step: int) -> float:
        beyond = max(0, -(-(step - replayed) // sample))
        return float(reached[step - beyond * sample] + beyond * period)

    round_steps = sample // trace.rounds if sample % trace.rounds == 0 else 1
    closing = _closing_seconds(reached, round_steps)

    def at(step: int) -> float:
        whole = -(-step // round_steps) * round_steps
        return min(passed(step) + (closing if whole > step else 0.0), passed(whole))

    end = found.finish_s[:, -1]
    compute, communication, idle = (
        float((spent[:, -1] / end).mean()) if end.all() else 0.0
        for spent in (found.compute_s, found.communication_s, found.idle_s)
    )
    return ClusterTime(
        profile=profile,
        nodes=trace.world_size,
        seconds=tuple(at(step) for step in steps),
        compute=compute,
        communication=communication,
        idle=idle,
        link_use=_link_use(found),
        carrying=_carrying(found),
        doubt=trace.meta.doubt,
    )


def _replayed(trace: "Trace", profile: ClusterProfile, steps: int, *, steady: bool) -> tuple["Replay", list[float]]:
    """The replay of `steps` or fewer, and the seconds until the last node has done 0, 1, 2, ... of them."""
    from istbench.cluster.simulator import replay
    from istbench.cluster.trace import STEP

    wanted = min(max(1, -(-steps // trace.steps)), _REPETITIONS)
    for repetitions in (_FEW, wanted) if steady and wanted > _FEW else (wanted,):
        found = replay(trace, profile, rounds=repetitions * trace.rounds)
        of_nodes = found.finish_s[:, found.mark_kind == STEP]
        before, last = of_nodes[:, -2 * trace.steps : -trace.steps], of_nodes[:, -trace.steps :]
        passed = last - before if repetitions > 1 else last
        if passed.max() - passed.min() <= _STEADY * passed.mean():
            break
    return found, [0.0, *of_nodes.max(axis=0).tolist()]


def dollars(profile: ClusterProfile, nodes: int, seconds: float) -> float:
    """Price of `nodes` machines of `profile` for this many seconds, USD."""
    return profile.price_per_hour * nodes * seconds / 3600


def _closing_seconds(reached: Sequence[float], round_steps: int) -> float:
    """Seconds of the exchange: the last step of the last replayed round, less the median of the other steps."""
    if round_steps == 1:
        return 0.0
    *others, last = (end - start for start, end in pairwise(reached[-round_steps - 1 :]))
    return max(0.0, last - median(others))


def _link_use(found: "Replay") -> float:
    if found.profile.full_duplex:
        return float(max(found.utilisation_out.max(), found.utilisation_in.max()))
    both_ways = (found.bytes_sent + found.bytes_received).max() * 8
    return float(both_ways / (found.profile.bandwidth_out * found.seconds)) if found.seconds else 0.0


def _carrying(found: "Replay") -> float:
    profile = found.profile
    if profile.cores is None or not found.seconds:
        return 0.0
    # One node sends each message and another receives it.
    messages = 2 * found.messages / len(found.bytes_sent)
    of_bytes = float((found.bytes_sent + found.bytes_received).max()) * profile.cpu_s_per_byte
    return (of_bytes + messages * profile.cpu_s_per_message) / (profile.cores * found.seconds)
