"""What the plots of a group share."""

from istbench.report.groups import Group
from istbench.report.palette import MethodStyle, method_styles
from istbench.report.phrases import is_lower_bound


def contender_styles(group: Group) -> dict[str, MethodStyle]:
    """The style of each name in the plots of `group`."""
    return method_styles(sorted({(contender.method, contender.name) for contender in group.contenders}))


def plot_title(group: Group) -> str:
    """The workload and its data, and how much of it was seen."""
    return f"{group.workload_label}, {group.source.seen}"


def plot_subtitle(group: Group, spread: str, machine: str = "") -> str:
    """The budget, the batch size, `machine` or the group's, and what the lines and bars are."""
    bound = ", seconds at best" if is_lower_bound(group.device, group.profile) else ""
    shared = f", {' '.join(group.shared)} throughout" if group.shared else ""
    where = machine or group.machine
    return f"{group.budget}, batch size {group.batch_size} a node{shared}, on {where}{bound}; {spread}"
