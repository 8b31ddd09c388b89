"""What all plots of a group share."""

from istbench.report.groups import Group
from istbench.report.palette import Look, looks
from istbench.report.phrases import data_name


def styles(group: Group) -> dict[str, Look]:
    """The look of each label in the pictures of `group`."""
    return looks(sorted({(entry.method, entry.label) for entry in group.entries}))


def time_words(group: Group) -> str:
    """What the seconds of `group` are, for an axis."""
    return "replayed time" if group.clock == "cluster_s" else "train time"


def plot_title(group: Group) -> str:
    return f"{group.workload_label}, {data_name(group.data)}"


def plot_subtitle(group: Group, spread: str) -> str:
    return f"{group.budget}, batch size {group.batch_size} a node, on {group.machine}; {spread}"
