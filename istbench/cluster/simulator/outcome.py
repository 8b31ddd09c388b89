"""The result of a replay."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.profile import ClusterProfile
from istbench.cluster.trace import Floats

Activity: TypeAlias = Literal["compute", "communication", "idle", "message"]
# In the order of the simulation's codes, from `state.SPAN_COMPUTE`.
ACTIVITIES: tuple[Activity, ...] = ("compute", "communication", "idle", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An activity of `node` from `start` to `end`, in seconds since the replay began.

    Attributes:
        activity: `compute`; waiting for operation `op`, which is `communication` or `idle` as in `Replay`; or a
            `message` of `bytes` to `peer`, until its last byte arrives.
        op: its number in the trace of that node; -1 for `compute`.
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
        compute_scale: seconds of computing on the cluster for one recorded second.
        rounds, steps: numbers of replayed ones.
        mark_kind: of every mark [marks], `trace.STEP` or `trace.ROUND`.
        finish_s: when each node reached each mark [nodes, marks], seconds.
        compute_s, communication_s, idle_s: how each node spent that time [nodes, marks], seconds. Waiting is idle
            until all participants have posted the operation, and communication after that.
        bytes_sent, bytes_received: by each node [nodes].
        utilisation_out, utilisation_in: of the link of each node's host [nodes], payload over capacity x `seconds`.
        link_use: the same of the busiest link, uplinks and links inside hosts among them.
        seconds: until the last node ended and the last message arrived.
        events, messages: simulated events of the trace, and messages on the network.
        spans: the timeline by end time, if requested.
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
    link_use: float
    seconds: float
    events: int
    messages: int
    spans: tuple[Span, ...] | None = None
