"""The step of one process on this machine, and clusters of nodes that compute as this machine does."""

from dataclasses import dataclass

import msgspec
import torch

from istbench.cluster.profile import ClusterProfile, at_bandwidth, at_latency
from istbench.cluster.this_machine import nodes_like
from istbench.cluster.trace import Trace, TraceMeta
from istbench.node.machine_speed import device_memory
from istbench.plan.planned_cell import PlannedCell
from istbench.studies.advise.seconds import mean_step_s


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A step that a node computed on this machine: the trace, and the seconds and operations of a step."""

    meta: TraceMeta
    step_s: float
    operations: float | None

    @classmethod
    def of(cls, trace: Trace, cell: PlannedCell | None) -> "RecordedStep":
        """The step in `trace` of `cell`; without the cell no other step has known seconds."""
        # A planned trace has no warm-up, and one of another length of a round may not have that of `trace`.
        meta = msgspec.structs.replace(trace.meta, warmup_steps=0, warmup_state=0, unlike_steps=0)
        return cls(meta=meta, step_s=mean_step_s(trace), operations=cell.operations if cell else None)


def nodes_like_here(
    recorded: TraceMeta, *, bandwidth: float | None, latency_s: float | None, crowd: float = 1.0
) -> ClusterProfile:
    """Nodes as fast as the process that recorded `recorded`, on links of `bandwidth` bits/s.

    The costs of messages are those of the default cluster. crowd: nodes on each of this machine's cores.
    """
    memory = device_memory(torch.device(recorded.device or "cpu"))
    like = nodes_like(recorded, name="machines like this one", memory=memory, crowd=crowd)
    there = like if latency_s is None else at_latency(like, latency_s)
    return at_bandwidth(there, bandwidth or like.bandwidth_out / like.payload)
