"""Sentences and words that tables and plots share."""

from collections.abc import Iterable

from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.config.data_source import DataSource

_PROCESSORS = 3000.0  # GFLOP/s that GPUs reach and processors do not

ROUGH = "~"
"""Marks a time that is interpolated from step 0."""

ROUGH_LINE = (
    f"{ROUGH}: reached before the first evaluation, so interpolated from step 0. A smaller --eval-every gives a "
    "better time."
)


def count_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def data_line(source: DataSource) -> str:
    """A line of a footer: the data, its share of the whole, and its fingerprint."""
    line = f"Data: {source.seen}, fingerprint {source.fingerprint[:12]}."
    return f"{line} These figures say nothing about the real dataset." if source.kind == "synthetic" else line


def guide_line(section: str) -> str:
    """A line of a footer that links the rules of its table, under the heading `section` of docs/results.md."""
    return f"How to read this table: docs/results.md#{section}"


def is_lower_bound(device: str, profile: ClusterProfile | None) -> bool:
    """Whether runs were recorded on processors and replayed on a cluster as fast as GPUs."""
    return device == "cpu" and profile is not None and profile.gflops > _PROCESSORS


def sustained_line(profile: ClusterProfile) -> Iterable[str]:
    """A line for a footer if links are faster for a limited time than the replay has them."""
    if profile.burst_bandwidth is None:
        return
    sustained, burst = (bandwidth_text(rate) for rate in (profile.bandwidth_out, profile.burst_bandwidth))
    times = profile.burst_bandwidth / min(profile.bandwidth_out, profile.bandwidth_in)
    yield (
        f"Network: {profile.name} at its sustained {sustained}. While burst credits last, its links may carry "
        f"{burst}: messages of short runs are up to {times:.2g} times as fast. `istbench replay --bandwidth "
        f"{profile.burst_bandwidth / 1e9:g}gbit` shows such runs."
    )


def lower_bound_line(device: str, profile: ClusterProfile) -> Iterable[str]:
    """A warning for a footer if `is_lower_bound`."""
    if is_lower_bound(device, profile):
        yield (
            f"Careful: {profile.name} computes as fast as GPUs do, but these runs were recorded on processors. The "
            "seconds are a lower bound; runs recorded on a GPU give better ones."
        )
