"""The clusters on which a recorded script is replayed: by default machines like the one that recorded it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.cluster.profile import THIS, ClusterProfile, select_clusters

if TYPE_CHECKING:
    from istbench.cluster.script_record import ScriptRecord

SCRIPT_NODES = (2, 4, 8)
"""Numbers of nodes, unless the user names others."""
CLUSTER_HELP = (
    f"Default: {DEFAULT_CLUSTER}; for a recorded script `{THIS}`, machines like the one that recorded it."
)


def clusters_of(
    record: "ScriptRecord", names: Sequence[str], bandwidths: Sequence[float], latencies: Sequence[float]
) -> tuple[dict[str, list[ClusterProfile]], tuple[str, ...]]:
    """The clusters `names` for `record`, as `select_clusters` has them, and phrases about what nobody named.

    Raises:
        UserError: as `select_clusters` does.
    """
    from istbench.cluster.this_machine import machines_of  # numpy, which help and lists need not

    chosen = names or [THIS]
    selected = select_clusters(chosen, bandwidths, latencies, machines_of(record))
    if THIS not in chosen or bandwidths:
        return selected, ()
    return selected, (f"the links are those of {DEFAULT_CLUSTER}: --bandwidth and --latency name yours",)
