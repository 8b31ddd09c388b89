"""`cluster_s`: train time of a traced run on another cluster, at any of its local steps."""

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

# A synchronous method is in its steady state after the first rounds; from there every repetition lasts as long.
_REPETITIONS = 8


@dataclass(frozen=True, kw_only=True)
class ClusterTime:
    """How long a run trains on a cluster, and what its nodes do in that time.

    Attributes:
        profile: the cluster.
        nodes: how many of its machines.
        seconds: when the last node has done so many local steps, one for each that was asked for.
        compute, communication, idle: shares of the time, mean over nodes, as `Replay` tells them apart.
        link_use: payload over capacity of the busiest node's link, in its busier direction.
        carrying: share of the busiest node's cores that carrying messages takes; 0 where the profile leaves it out.
        doubt: why the trace's own seconds may be off, in a few words; empty where nothing is known against them.
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


def cluster_time(trace: "Trace", profile: ClusterProfile, steps: Sequence[int]) -> ClusterTime:
    """Train time on `profile` at each of the numbers of local `steps`, which need not be whole rounds.

    A step inside a round is followed by the exchange that closes it, as where a run's budget ends there. The
    sample of the trace is replayed again and again, until the longest time is known or a steady state is; from
    there on, every repetition takes as long as the last one replayed.

    Raises:
        UserError: as `replay` does, and where the trace marks no local steps.
    """
    from istbench.cluster.simulator import replay
    from istbench.cluster.trace import STEP

    sample = trace.steps
    if not sample:
        raise UserError("the trace marks no local steps; record it again with `istbench run --again`")
    repetitions = min(max(1, -(-max(steps, default=0) // sample)), _REPETITIONS)
    found = replay(trace, profile, rounds=repetitions * trace.rounds)
    last_node = found.finish_s[:, found.mark_kind == STEP].max(axis=0)
    reached = [0.0, *last_node.tolist()]
    replayed = repetitions * sample
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


def dollars(profile: ClusterProfile, nodes: int, seconds: float) -> float:
    """What `nodes` machines of `profile` cost for so many seconds, USD."""
    return profile.price_per_hour * nodes * seconds / 3600


def _closing_seconds(reached: Sequence[float], round_steps: int) -> float:
    """What the last step of a round takes beyond the others, in the last round replayed: its exchange."""
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
    # Every message is sent by one node and received by another.
    messages = 2 * found.messages / len(found.bytes_sent)
    of_bytes = float((found.bytes_sent + found.bytes_received).max()) * profile.cpu_s_per_byte
    return (of_bytes + messages * profile.cpu_s_per_message) / (profile.cores * found.seconds)
