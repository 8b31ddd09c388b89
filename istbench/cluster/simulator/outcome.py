"""What a replay tells."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.profile import ClusterProfile
from istbench.cluster.trace import Floats

Activity: TypeAlias = Literal["compute", "communication", "idle", "message"]
# In the order of the simulation's codes, `state.SPAN_COMPUTE` and so on.
ACTIVITIES: tuple[Activity, ...] = ("compute", "communication", "idle", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that took from `start` to `end` (seconds since the replay began) on or from `node`.

    Attributes:
        activity: `compute`; waiting for operation `op`, `communication` or `idle` as in `Replay`; or a `message` of
            `bytes` to `peer`, on its connection until the last byte has arrived.
        op: as numbered in the trace on that node; -1 of a compute.
    """

    node: int
    activity: Activity
    start: float
    end: float
    op: int
    bytes: float
    peer: int


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Some rounds of a trace on a cluster.

    Attributes:
        profile: the cluster.
        compute_scale: seconds computed there for one recorded.
        rounds, steps: how many were replayed.
        mark_kind: of every mark [marks], `trace.STEP` or `trace.ROUND`.
        finish_s: when each node got to each mark [nodes, marks], seconds.
        compute_s, communication_s, idle_s: how each node spent that time [nodes, marks], seconds. Waiting is
            communication from when every node that takes part has posted its part, and idle before.
        bytes_sent, bytes_received: by each node [nodes].
        utilisation_out, utilisation_in: of each node's link [nodes], payload over capacity x `seconds`.
        seconds: when the last node ended, and the last message that it had sent was there.
        events, messages: of the trace, and on the network, that were simulated.
        spans: the timeline in order of their end, where asked for.
    """

    profile: ClusterProfile
    compute_scale: float
    rounds: int
    steps: int
    mark_kind: NDArray[np.uint8]
    finish_s: Floats
    compute_s: Floats
    communication_s: Floats
    idle_s: Floats
    bytes_sent: Floats
    bytes_received: Floats
    utilisation_out: Floats
    utilisation_in: Floats
    seconds: float
    events: int
    messages: int
    spans: tuple[Span, ...] | None = None
