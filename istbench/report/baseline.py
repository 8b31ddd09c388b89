"""Pair each row with a row of the baseline: of as many tuning trials, of equal settings, or else the fastest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from istbench.base.options.options import option_text
from istbench.report.groups import Contender, RunGroup, split_label
from istbench.report.targets import Target
from istbench.results.stats import SpeedUp, median, speed_up

_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A row's speed-up over a row of the baseline, `against`, to `target`.

    Attributes:
        equal: whether both rows have equal values of all settings that they share.
    """

    against: Contender
    equal: bool
    target: Target
    found: SpeedUp


def is_named(name: str, label: str, method: str, settings: Mapping[str, Any]) -> bool:
    """Whether `name` is the label of a row, or its method with values of some of its `settings`."""
    wanted, options = split_label(name)
    return name == label or (
        wanted == method
        and all(key in settings and same_value(settings[key], text) for key, text in options.items())
    )


def same_value(value: Any, text: str) -> bool:
    """Whether `text` stands for the option's `value`."""
    if isinstance(value, bool):
        return text.lower() in (_YES if value else _NO)
    if option_text(value) == text:
        return True
    try:
        return float(text) == float(value)
    except (TypeError, ValueError):
        return False


def baseline_rows(group: RunGroup, name: str, nodes: int) -> list[Contender]:
    """The rows on `nodes` nodes that `name` names: the one with that label, or all of that method.

    A row at a subnet's width has to be named by its label. One that accumulates or compresses is left out if the
    name has others.
    """
    there = [contender for contender in group.contenders if contender.nodes == nodes]
    _, options = split_label(name)
    exact = [contender for contender in there if options and contender.label == name]
    named = exact or [c for c in there if not c.narrowed and is_named(name, c.label, c.method, c.settings)]
    plain = [c for c in named if c.header.minibatches_a_step == 1] or named
    return [c for c in plain if not c.header.compresses] or plain


def pair(
    group: RunGroup, name: str, contender: Contender, targets: Sequence[Target] | None = None
) -> Pairing | None:
    """The speed-up of `contender` over a row of baseline `name`, to the highest target that both reached.

    Without such a target, the pairing to the highest target that only `contender` reached. None if the baseline has
    no row here, if `contender` is such a row, or if it reached no target.

    targets: the only ones, the easiest first; by default those of the table.
    """
    rows = baseline_rows(group, name, contender.nodes)
    if not rows or contender in rows:
        return None
    # A speed-up of tuned over untuned options would also show the gain of the tuning.
    rows = [row for row in rows if row.trials == contender.trials] or rows
    equal = [row for row in rows if not differing_settings(contender, row)]
    missed = None
    for target in reversed(group.targets if targets is None else targets):
        against = min(equal or rows, key=lambda row: _order(row, target))
        found = speed_up(against.seconds(target.level), contender.seconds(target.level))
        if found is None:
            continue
        pairing = Pairing(against=against, equal=bool(equal), target=target, found=found)
        if found.ratio is not None:
            return pairing
        if found.baseline_missed and missed is None:
            missed = pairing
    return missed


def differing_settings(one: Contender, other: Contender) -> list[str]:
    """Names of the settings that both rows have with different values."""
    both = one.settings.keys() & other.settings.keys()
    return sorted(name for name in both if one.settings[name] != other.settings[name])


def typed_differences(one: Contender, other: Contender) -> list[str]:
    """The `differing_settings` that the user chose: one of the labels names them."""
    typed = split_label(one.label)[1].keys() | split_label(other.label)[1].keys()
    return [name for name in differing_settings(one, other) if name in typed]


def _order(row: Contender, target: Target) -> tuple[float, int, str]:
    """Sort faster rows first; among rows with an infinite median, those with more seeds at the target."""
    seconds = list(row.seconds(target.level).values())
    return median(seconds), -sum(map(math.isfinite, seconds)), row.label
