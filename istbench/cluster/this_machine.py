"""Clusters of nodes that compute as a machine does that recorded something."""

import dataclasses

import msgspec

from istbench.base.machine import memory_bytes
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.cluster.profile import TCP_PAYLOAD, ClusterProfile, load_profile
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace, TraceMeta

_GIB = 2**30


class NodesLikeHere(ClusterProfile):
    """Nodes that compute as the recording machine does, on links whose messages share them with headers."""

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


def nodes_like(recorded: TraceMeta, *, name: str, memory: int, crowd: float = 1.0) -> NodesLikeHere:
    """Nodes as fast as the process that recorded `recorded`, with `memory` bytes each.

    The costs of messages and the links are those of the default cluster, whose bandwidth counts no headers. crowd:
    nodes on each of its cores.
    """
    base = load_profile(DEFAULT_CLUSTER)
    scanned, gathered = recorded.memory_gb_per_s, recorded.gather_gb_per_s
    like = dataclasses.replace(
        base,
        name=name,
        summary="nodes that compute as the recording machine does",
        source="the recording machine",
        gflops=(Trace(nodes=(), meta=recorded).gflops or 1.0) / crowd,
        memory_gb_per_s=scanned and scanned / crowd,
        gather_gb_per_s=gathered and gathered / crowd,
        core_gb_per_s=scanned if recorded.threads == 1 else None,
        memory_gib=memory / _GIB,
        burst_bandwidth=None,
        cores=None if recorded.device == "cuda" else (recorded.threads or 1) / crowd,
        price_per_hour=0.0,
        price_date="",
        price_source="",
    )
    return NodesLikeHere(**vars(like))


def machines_of(record: ScriptRecord) -> NodesLikeHere:
    """Machines like the one that recorded `record`: the cluster `this` of a recorded script."""
    return nodes_like(
        record.machine, name="machines like the one that recorded", memory=record.memory_bytes or memory_bytes()
    )
