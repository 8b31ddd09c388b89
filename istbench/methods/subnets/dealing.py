"""The neuron groups whose units are dealt to the nodes. Every node trains all units of the other groups."""

from collections.abc import Sequence

from torch import nn

from istbench.base.errors import UserError, nearest_name, shown
from istbench.workloads.neuron_groups.groups import NeuronGroup, named_tensors

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
