"""The clusters on which a recorded script is replayed: by default machines like the one that recorded it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.cluster.profile import THIS, ClusterProfile, select_clusters

if TYPE_CHECKING:
    from istbench.cluster.script_record import ScriptRecord

_Command = Callable[..., Any]

SCRIPT_NODES = (2, 4, 8)
"""Numbers of nodes, unless the user names others."""
CLUSTER_HELP = (
    f"Default: {DEFAULT_CLUSTER}; for a recorded script `{THIS}`, machines like the one that recorded it."
)


def cluster_or_this_option(command: _Command) -> _Command:
    """`--cluster` of a command that also takes a recorded script; None if it is not typed."""
    return click.option(
        "--cluster",
        metavar="NAME|FILE.toml",
        help=f"Cluster of the nodes; see `istbench list clusters`. {CLUSTER_HELP}",
    )(command)


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
