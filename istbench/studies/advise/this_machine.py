"""The step of one process on this machine, and clusters of nodes that compute as this machine does."""

import dataclasses
from dataclasses import dataclass

import msgspec

from istbench.base.machine import memory_bytes
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.cluster.profile import TCP_PAYLOAD, ClusterProfile, bandwidth_text, load_profile
from istbench.cluster.trace import Trace, TraceMeta
from istbench.plan.planned_cell import PlannedCell
from istbench.studies.advise.seconds import mean_step_s

_GIB = 2**30


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
        meta = msgspec.structs.replace(trace.meta, warmup_steps=0, unlike_steps=0)
        return cls(meta=meta, step_s=mean_step_s(trace), operations=cell.operations if cell else None)


class NodesLikeHere(ClusterProfile):
    """Nodes that compute as this machine does, on links whose messages share them with headers."""

    payload = TCP_PAYLOAD

    def seen(self, trace: Trace) -> Trace:
        """`trace` with the speeds of these nodes, so that a replay keeps its seconds of computing.

        Shapes of matrix products differ by method, and so do speeds measured by them.
        """
        meta = msgspec.structs.replace(
            trace.meta,
            gflops=self.gflops,
            memory_gb_per_s=self.memory_gb_per_s,
            gather_gb_per_s=self.gather_gb_per_s,
        )
        return dataclasses.replace(trace, meta=meta)

    def with_bandwidth(self, bits_per_second: float) -> ClusterProfile:
        """See `ClusterProfile.with_bandwidth`; headers take a share of it."""
        return super().with_bandwidth(bits_per_second * self.payload)


def nodes_like_here(
    recorded: TraceMeta, *, bandwidth: float | None, latency_s: float | None, crowd: float = 1.0
) -> NodesLikeHere:
    """Nodes as fast as the process that recorded `recorded`, on links of `bandwidth` bits/s.

    The costs of messages are those of the default cluster. crowd: nodes on each of this machine's cores.
    """
    base = load_profile(DEFAULT_CLUSTER)
    memory, gather = recorded.memory_gb_per_s, recorded.gather_gb_per_s
    bits = bandwidth or base.bandwidth_out
    threads = recorded.threads or 1
    like = dataclasses.replace(
        base,
        name=f"machines like this one at {bandwidth_text(bits)}",
        summary="nodes that compute as this machine does",
        source="this machine",
        gflops=(Trace(nodes=(), meta=recorded).gflops or 1.0) / crowd,
        memory_gb_per_s=memory and memory / crowd,
        gather_gb_per_s=gather and gather / crowd,
        memory_gib=_memory_here(recorded) / _GIB,
        bandwidth_out=bits * NodesLikeHere.payload,
        bandwidth_in=bits * NodesLikeHere.payload,
        burst_bandwidth=None,
        latency_s=base.latency_s if latency_s is None else latency_s,
        cores=None if recorded.device == "cuda" else threads / crowd,
        price_per_hour=0.0,
        price_date="",
        price_source="",
    )
    return NodesLikeHere(**vars(like))


def _memory_here(recorded: TraceMeta) -> int:
    if recorded.device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    return memory_bytes()
