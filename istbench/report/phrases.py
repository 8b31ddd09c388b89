"""Phrases that tables and plots share."""

from collections.abc import Iterable

from istbench.cluster.profile import ClusterProfile
from istbench.config.data_source import DataSource

_PROCESSORS = 3000.0  # GFLOP/s that a machine's processors do not reach, and GPUs do


ROUGH = "~"
"""Before a time that is interpolated from step 0."""

ROUGH_LINE = (
    f"{ROUGH}: the target was crossed before the first evaluation, and the time is interpolated from step 0. Train "
    "with a smaller --eval-every for a better one."
)


def count_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def data_line(source: DataSource) -> str:
    """The data for a footer: which, how much of it, and its fingerprint."""
    what = f"Data: {source.seen}, fingerprint {source.fingerprint[:12]}."
    if source.kind == "synthetic":
        return f"{what} Made by istbench: these figures say nothing about the real dataset."
    return what


def is_lower_bound(device: str, profile: ClusterProfile | None) -> bool:
    """Whether seconds are of runs recorded on processors, and replayed where only GPUs compute as fast."""
    return device == "cpu" and profile is not None and profile.gflops > _PROCESSORS


def lower_bound_line(device: str, profile: ClusterProfile) -> Iterable[str]:
    """A warning for a footer, where `is_lower_bound`."""
    if is_lower_bound(device, profile):
        yield (
            f"Careful: {profile.name} computes as fast as GPUs do, and these are replays of runs on processors. "
            "All computing is scaled as large matrix products are; small layers gain far less on a GPU. Seconds "
            "are no more than a lower bound; a run recorded on a GPU has better ones."
        )
