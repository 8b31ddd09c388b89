"""Data of all workloads: find it, prepare it once, map it, name broken files."""

from istbench.workloads.prepared.arrays import SplitWriter, map_array, open_labels
from istbench.workloads.prepared.directory import (
    SPLITS,
    Summary,
    damaged,
    directory_name,
    open_summary,
    prepared,
    read_summary,
    require_room,
    sizes,
    source_of,
)
from istbench.workloads.prepared.download import download, downloaded
from istbench.workloads.prepared.files import (
    files_digest,
    listed,
    named_errors,
    require_regular,
    utf8_name,
    visible,
)

__all__ = [
    "SPLITS",
    "SplitWriter",
    "Summary",
    "damaged",
    "directory_name",
    "download",
    "downloaded",
    "files_digest",
    "listed",
    "map_array",
    "named_errors",
    "open_labels",
    "open_summary",
    "prepared",
    "read_summary",
    "require_regular",
    "require_room",
    "sizes",
    "source_of",
    "utf8_name",
    "visible",
]
