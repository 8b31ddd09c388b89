"""The variants that step two trains: those whose speed can make them first, in the order people would try them."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from istbench.base.options.defaults import BASELINE
from istbench.studies.advise.variant import EstimatedVariant, Variant

_SAME_SPEED = 0.98
_SAME_BYTES = 0.01


def mark_slow(found: Sequence[EstimatedVariant]) -> list[EstimatedVariant]:
    """`found` with a reason for each variant whose speed cannot make it first.

    Of the methods that make the same optimizer step, only the fastest can be first. Without an outer step, no
    other method learns more in a local step than they do, so one that takes as long as the fastest of them cannot
    be first either. Baselines are trained in any case.
    """
    exact = [one for one in found if one.step_s is not None and not one.why_not and one.variant.joint_steps]
    fastest = min(exact, key=lambda one: one.step_s or 0.0, default=None)
    marked = [one if fastest is None else _marked(one, fastest) for one in found]
    return [_marked_equivalent(one, marked[:place]) for place, one in enumerate(marked)]


def _marked_equivalent(one: EstimatedVariant, earlier: Sequence[EstimatedVariant]) -> EstimatedVariant:
    """`one` with a reason if an earlier variant differs in the value of a text alone, and is as fast."""
    texts = {name for name, value in one.variant.options.items() if isinstance(value, str)}
    for other in earlier:
        alike = other.variant.method == one.variant.method and {*other.variant.options} == {*one.variant.options}
        if not alike or not texts or one.why_not or other.why_not or one.step_s is None or other.step_s is None:
            continue
        rest = [name for name in one.variant.options if name not in texts]
        if all(one.variant.options[name] == other.variant.options[name] for name in rest) and math.isclose(
            one.step_s, other.step_s, rel_tol=_SAME_BYTES
        ):
            return dataclasses.replace(one, why_not=f"as fast as {other.variant.label}")
    return one


def _marked(one: EstimatedVariant, fastest: EstimatedVariant) -> EstimatedVariant:
    if one.why_not or one.variant.baseline or one is fastest or one.step_s is None:
        return one
    assert fastest.step_s is not None
    if one.variant.joint_steps:
        return dataclasses.replace(one, why_not=f"learns as {fastest.variant.label} does, which is faster here")
    if one.step_s >= _SAME_SPEED * fastest.step_s and not _has_control(one):
        return dataclasses.replace(one, why_not=f"a step takes as long as one of {fastest.variant.label}")
    return one


def _has_control(one: EstimatedVariant) -> bool:
    """Whether the method has an outer step, which may learn more than the local steps alone."""
    return one.cell is not None and one.cell.method.control_nodes is not None


def longest_alike(variant: Variant, trained: Sequence[tuple[Variant, int]]) -> str:
    """The label of the longest probe that tells how `variant` learns: its own, or that of `ddp` with equal options.

    The latter counts if `variant` makes the steps of `ddp`. trained: variants with the local steps of their probes.
    """
    own = max((steps for other, steps in trained if other.label == variant.label), default=0)
    for other, steps in trained:
        alike = other.method == BASELINE and other.options == variant.options
        if alike and variant.joint_steps and steps > own:
            return other.label
    return variant.label


def shortlist(found: Iterable[EstimatedVariant]) -> list[EstimatedVariant]:
    """The variants to train, in order: baselines, one of each other method as people would try them, the others.

    Among methods that few try first, the faster stands first; among equally fast ones, the one with shorter rounds:
    it is closer to `ddp`. A variant of unknown speed stands last.
    """
    open_ones = [one for one in found if not one.why_not]
    baselines = [one for one in open_ones if one.variant.baseline]
    rest = sorted((one for one in open_ones if not one.variant.baseline), key=_speed_order)
    seen: set[tuple[str, bool]] = set()
    first: list[EstimatedVariant] = []
    second: list[EstimatedVariant] = []
    for one in rest:  # of each method, its fastest variant, at a constant rate and with a schedule
        kind = (one.variant.method, one.variant.scheduled)
        (second if kind in seen else first).append(one)
        seen.add(kind)
    return [*baselines, *sorted(first, key=lambda one: one.usual_place), *second]


def _speed_order(one: EstimatedVariant) -> tuple[float, int, str]:
    if one.step_s is None:
        return (math.inf, one.round_steps, one.variant.label)
    return (round(math.log(one.step_s) / math.log(1.1)), one.round_steps, one.variant.label)
