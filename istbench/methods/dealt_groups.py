"""The neuron groups that a method deals out to a number of nodes: checked before a run, and alike on every node."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from torch import nn

from istbench.base.error_lines import error_line
from istbench.base.errors import UserError, nearest_name, shown
from istbench.fabric import Fabric
from istbench.workloads.base import Workload
from istbench.workloads.neuron_groups.groups import NeuronGroup, dealt_to, named_tensors
from istbench.workloads.neuron_groups.layout import layout_of

ALL = ("all",)
_WORDS = ("all", "late", "linear")


def selected_groups(model: nn.Module, groups: Sequence[NeuronGroup], deal: Sequence[str]) -> list[NeuronGroup]:
    """The groups among `groups` that `deal` selects, in their order.

    deal: `all`, `late`, `linear`, names of groups, or of layers that hold groups, such as `block2_2`.

    Raises:
        UserError: if one of `deal` selects no group.
    """
    chosen: set[str] = set()
    for word in deal:
        selected = {group.name for group in groups if _selects(word, group, model)}
        if groups and not selected:
            raise _none_selected(word, groups)
        chosen |= selected
    return [group for group in groups if group.name in chosen]


def is_linear(model: nn.Module, group: NeuronGroup) -> bool:
    """Whether the units of `group` index tensors of linear layers only, none of a convolution."""
    tensors = named_tensors(model)
    return all(tensors[slot.tensor].dim() <= 2 for slot in group.slots)


def _selects(word: str, group: NeuronGroup, model: nn.Module) -> bool:
    if word == "late":
        return group.late
    if word == "linear":
        return is_linear(model, group)
    return word in ("all", group.name) or group.name.startswith(f"{word}.")


def _none_selected(word: str, groups: Sequence[NeuronGroup]) -> UserError:
    names = [group.name for group in groups]
    if word in _WORDS:
        return UserError(f"deal={word}: the model has no {word} neuron groups. Known: {', '.join(names)}")
    return UserError(f"deal: no neuron group {shown(word)}{nearest_name(word, names)}")


_NAMED = 4


def dealt_groups(model: nn.Module, workload: Workload, nodes: int, options: Any) -> list[NeuronGroup]:
    """The neuron groups of `workload` that `options` select, without those that stay whole on `nodes` nodes.

    With `scale=off`, no subnet scales their sums.
    """
    selected = selected_groups(model, workload.neuron_groups(model), options.deal)
    dealt = dealt_to(least_units(nodes, options), selected)
    return dealt if options.scale == "auto" else [replace(group, sums=()) for group in dealt]


def least_units(nodes: int, options: Any) -> int:
    """The units that a group needs, so that every one of `nodes` nodes owns one."""
    return -(-nodes // int(options.coverage))


def check_groups(method: str, model: nn.Module, workload: Workload, nodes: int, options: Any) -> None:
    """Check that `method` can deal out units of `model` to `nodes` nodes.

    Raises:
        UserError: if no group can be dealt out, or one does not fit the model or has too few units.
    """
    try:
        groups = workload.neuron_groups(model)
        layout_of(model, groups)
    except ValueError as error:
        if error_line(error) is not None:
            raise  # the command shows the line of the user's code
        raise UserError(f"workload {workload.name!r}: {error}") from None
    if not groups:
        raise UserError(f"workload {workload.name!r} declares no neuron groups, so {method} cannot cut it")
    workload.prove_groups(groups)
    selected, least = selected_groups(model, groups, options.deal), least_units(nodes, options)
    dealt = dealt_to(least, selected)
    size = attrgetter("size")
    short = min(dealt, key=size) if dealt else max(selected, key=size)
    if short.size < least:
        most = "" if dealt else ", the most of all groups"
        raise UserError(
            f"{method} needs a hidden unit for each node, but {short.name!r} has {short.size} units for {nodes} "
            f"nodes{most}; use fewer nodes or a wider model"
        )


def whole_groups(model: nn.Module, workload: Workload, nodes: int, options: Any) -> str:
    """A line that names the selected groups that stay whole on `nodes` nodes, or says that no group is proved.

    Empty if all are dealt out and proved.
    """
    written = workload.neuron_groups(model)
    groups = selected_groups(model, written, options.deal)
    dealt = {group.name for group in dealt_to(least_units(nodes, options), groups)}
    whole = [f"{group.name} ({group.size})" for group in groups if group.name not in dealt]
    more = f" and {len(whole) - _NAMED} more" if len(whole) > _NAMED else ""
    named = ", ".join(whole[:_NAMED])
    short = f"neuron groups with fewer units than the {nodes} nodes stay whole: {named}{more}" if whole else ""
    return "; ".join(filter(None, (short, workload.prove_groups(written))))


def compare_groups(groups: Sequence[NeuronGroup], fabric: Fabric) -> None:
    """Check that every node has the same `groups` in the same order. Control traffic.

    Each node finds the groups of an unknown model itself, in a run of its own.

    Raises:
        UserError: on every node, with the first group that differs.
    """
    if fabric.world_size == 1 or _alike(fabric.numbers(_digest(groups))):
        return
    for place in range(round(max(fabric.numbers(len(groups))))):
        here = groups[place : place + 1]
        found = fabric.numbers(_digest(here))
        if not _alike(found):
            other = next(rank for rank, digest in enumerate(found) if digest != found[fabric.rank])
            mine = (
                f"neuron group {here[0].name!r}, but rank {other} finds another or none"
                if here
                else f"only {len(groups)} neuron groups, but rank {other} finds more"
            )
            raise UserError(
                f"rank {fabric.rank} finds {mine}; use the same files and versions of torch on all nodes, or write "
                "neuron_groups(model)"
            )


def _digest(groups: Sequence[NeuronGroup]) -> float:
    """A whole number that a float64 holds exactly."""
    return float(int.from_bytes(hashlib.sha256(repr(list(groups)).encode()).digest()[:6], "big"))


def _alike(digests: Sequence[float]) -> bool:
    return len(set(digests)) == 1
