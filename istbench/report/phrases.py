"""Sentences and words that tables and plots share."""

from collections.abc import Iterable, Sequence

from istbench.cluster.clock import ClusterTime
from istbench.cluster.profile import ClusterProfile
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


def lower_bound_line(device: str, profile: ClusterProfile) -> Iterable[str]:
    """A warning for a footer if `is_lower_bound`."""
    if is_lower_bound(device, profile):
        yield (
            f"Careful: {profile.name} computes as fast as GPUs do, but these runs were recorded on processors. The "
            "seconds are a lower bound; runs recorded on a GPU give better ones."
        )


def scaling_lines(times: Sequence[ClusterTime], profile: ClusterProfile) -> Iterable[str]:
    """Lines of a footer: how recorded computing became seconds of `profile`, and how far that is known."""
    lacking = sorted({time.lacks for time in times if time.lacks})
    if lacking:
        yield (
            f"Scaled by matrix products alone, because {' and '.join(lacking)} lack"
            f"{'' if len(lacking) > 1 else 's'} the speed of memory: no range is known."
        )
    if any(time.low is not None for time in times):
        yield (
            "The range of replayed seconds is that of computing: the changes of the recording machine's speed, and "
            "the time that neither matrix products nor memory explain. It leaves out errors of the profile."
        )
    if profile.cores is None and any(time.works for time in times):
        yield (
            f"The processors beside the GPU of {profile.name} are unknown: updates of served parameters, and "
            "batches made ahead, take as long as recorded."
        )
