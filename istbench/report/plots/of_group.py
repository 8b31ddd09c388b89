"""What the plots of a group share."""

from istbench.report.groups import Group
from istbench.report.palette import MethodStyle, method_styles


def contender_styles(group: Group) -> dict[str, MethodStyle]:
    """The style of each label in the plots of `group`."""
    return method_styles(sorted({(contender.method, contender.label) for contender in group.contenders}))


def plot_title(group: Group) -> str:
    """The workload and its data, and how much of it was seen."""
    return f"{group.workload_label}, {group.source.seen}"


def plot_subtitle(group: Group, spread: str) -> str:
    """The budget, the batch size and the machine, and what the lines and bars are."""
    return f"{group.budget}, batch size {group.batch_size} a node, on {group.machine}; {spread}"
