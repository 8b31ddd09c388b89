"""`cluster_s`: the train time of a traced run on another cluster, at any local step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from istbench.base.errors import UserError
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import ReplayCheck
from istbench.cluster.scale import scale

if TYPE_CHECKING:
    from istbench.cluster.simulator import Replay
    from istbench.cluster.trace import Floats, Ints, Trace

# A synchronous method reaches its steady state in the first rounds; later repetitions take equally long. A sample
# that does not repeat itself after a few repetitions, up to `_STEADY` of its seconds, is repeated more often.
_FEW, _REPETITIONS = 3, 8
_STEADY = 1e-4


@dataclass(frozen=True, kw_only=True)
class ClusterTime:
    """The train time of a run on a cluster, and how its nodes spend it.

    Attributes:
        profile: the cluster.
        nodes: number of them.
        seconds: until the last node has done each requested number of local steps.
        compute, communication, idle: shares of the time as in `Replay`, mean over nodes.
        computing: share of the time in which each node computes, by rank.
        link_use: payload over capacity of the busiest link or uplink, in its busier direction.
        carrying: share of the busiest node's cores that messages take; 0 if the profile leaves it out.
        low, high: the range of the seconds by what is known of computing, as factors of `seconds`; None if unknown.
            The true range is no wider: it is narrower where messages hide computing.
        lacks: what lacks figures of memory, in a few words, so that computing is scaled by matrix products alone.
        works: whether threads beside training worked.
        doubt: a reason to doubt the seconds in the trace, in a few words; empty without a reason.
        unlike_steps: as in `TraceMeta`.
        check: how far replays of the run's method were off in a lab; None if the method is not known here.
    """

    profile: ClusterProfile
    nodes: int
    seconds: tuple[float, ...]
    compute: float
    communication: float
    idle: float
    link_use: float
    carrying: float
    low: float | None = None
    high: float | None = None
    lacks: str = ""
    works: bool = False
    doubt: str = ""
    unlike_steps: int = 0
    check: ReplayCheck | None = None
    computing: tuple[float, ...] = ()


def cluster_time(
    trace: "Trace", profile: ClusterProfile, steps: Sequence[int], *, steady: bool = True
) -> ClusterTime:
    """Train time on `profile` at each number of local `steps`, also inside a round, where a run could evaluate.

    An evaluation waits for all messages and work under way, and for a last exchange (`TraceMeta.last_bytes`). Its
    weights do not exist before.

    After a step inside a round comes the exchange that closes the round, as at the end of a run's budget. The
    replay repeats the sample until it covers all steps or reaches a steady state. Each later repetition takes as
    long as the last replayed one. A step of a warm-up inside a round takes the seconds of that exchange more
    (`TraceMeta.warmup_steps`).

    steady: end the replay as soon as a repetition repeats the one before, or else after eight.

    Raises:
        UserError: as `replay` does, and for a trace without marks of local steps.
    """
    import numpy as np  # here, because many commands import this file for `dollars`

    sample = trace.steps
    if not sample:
        raise UserError("the trace marks no local steps; record it again with `istbench run --again`")
    scaled = scale(trace, profile)
    found, reached = _replayed(trace, profile, max(steps, default=0), steady=steady)
    replayed = len(reached) - 1
    period = reached[replayed] - reached[replayed - sample]

    round_steps = trace.round_steps
    closing = _closing_seconds(reached, round_steps)

    def passed(step: "Ints") -> "Floats":
        beyond = np.maximum(0, -(-(step - replayed) // sample))
        extra = trace.warmup_exchanges(step) * closing
        return np.asarray(reached[step - beyond * sample] + beyond * period + extra)

    step = np.array(steps, np.int64)
    whole = -(-step // round_steps) * round_steps
    draining = max(0.0, found.seconds - float(found.finish_s[:, -1].max()))  # after the last step
    ending = draining + last_exchange_seconds(trace, profile)
    at = ending + np.minimum(passed(step) + np.where(whole > step, closing, 0.0), passed(whole))

    end = found.finish_s[:, -1]
    compute, communication, idle = (
        float((spent[:, -1] / end).mean()) if end.all() else 0.0
        for spent in (found.compute_s, found.communication_s, found.idle_s)
    )
    computing = (found.compute_s[:, -1] / end).tolist() if end.all() else [0.0]
    return ClusterTime(
        profile=profile,
        nodes=trace.world_size,
        seconds=tuple(np.where(step > 0, at, 0.0).tolist()),
        compute=compute,
        communication=communication,
        idle=idle,
        link_use=found.link_use,
        carrying=_carrying(found),
        low=_moved(scaled.low, scaled.compute, max(computing)),
        high=_moved(scaled.high, scaled.compute, max(computing)),
        lacks=scaled.lacks,
        works=trace.has_work,
        doubt=trace.meta.doubt,
        unlike_steps=trace.meta.unlike_steps,
        computing=tuple(computing[rank % len(computing)] for rank in range(trace.world_size)),
    )


def _moved(end: float | None, compute: float, share: float) -> float | None:
    """Seconds over the replayed ones if computing, `share` of them, is scaled by `end` instead of `compute`."""
    return None if end is None else 1 + (end / compute - 1) * share


def _replayed(trace: "Trace", profile: ClusterProfile, steps: int, *, steady: bool) -> tuple["Replay", "Floats"]:
    """The replay of `steps` or fewer, and the seconds until the last node has done 0, 1, 2, ... of them."""
    import numpy as np

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
    return found, np.append(0.0, of_nodes.max(axis=0))


def dollars(profile: ClusterProfile, nodes: int, seconds: float) -> float | None:
    """Price of the hosts of `nodes` nodes of `profile` for this many seconds, USD; None without a price."""
    return None if not profile.priced else profile.price_per_hour * -(-nodes // profile.host_nodes) * seconds / 3600


def last_exchange_seconds(trace: "Trace", profile: ClusterProfile) -> float:
    """Seconds of the exchange of `TraceMeta.last_bytes`, before the last evaluation."""
    from istbench.cluster.simulator import replay
    from istbench.cluster.trace_builder import TraceBuilder, merge

    if not trace.meta.last_bytes or trace.world_size == 1:
        return 0.0
    builder = TraceBuilder(clock=lambda: 0.0)
    builder.wait(builder.post("all_reduce", trace.meta.last_bytes))
    builder.mark("step")
    return replay(merge([builder.to_arrays()], world_size=trace.world_size), profile, compute_scale=1.0).seconds


def _closing_seconds(reached: "Floats", round_steps: int) -> float:
    """Seconds of the exchange: the last step of the last replayed round, less the median of the other steps."""
    if round_steps == 1:
        return 0.0
    *others, last = (end - start for start, end in pairwise(reached[-round_steps - 1 :].tolist()))
    return float(max(0.0, last - median(others)))


def _carrying(found: "Replay") -> float:
    profile = found.profile
    if profile.cores is None or not found.seconds:
        return 0.0
    # One node sends each message and another receives it.
    messages = 2 * found.messages / len(found.bytes_sent)
    of_bytes = float((found.bytes_sent + found.bytes_received).max()) * profile.cpu_s_per_byte
    return (of_bytes + messages * profile.cpu_s_per_message) / (profile.cores * found.seconds)
