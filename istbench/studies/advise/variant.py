"""Variants: methods with options that an advice may recommend, what step one knows of each, and those to train."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from istbench.base.options.defaults import BASELINE
from istbench.base.options.options import label_of
from istbench.base.options.run import RunConfig, RunRequest
from istbench.cluster.trace import Trace
from istbench.methods.optimizer import OF_RULES, OptimizerOptions
from istbench.node.registry import build_method, build_workload, load_method, suited_defaults
from istbench.plan.planned_cell import PlannedCell
from istbench.studies.advise.candidate import OF_SCHEDULES, is_scheduled


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A method with options, and the plug-in files that may define it. baseline: as in `Candidate`."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False
    plugins: tuple[str, ...] = ()

    @property
    def joint_steps(self) -> bool:
        """Whether it makes the optimizer steps of `ddp`, and so learns as much in each one."""
        exchange = {name: value for name, value in self.options.items() if name not in {*OF_RULES, *OF_SCHEDULES}}
        return build_method(self.method, exchange, plugins=self.plugins).joint_steps()

    @property
    def scheduled(self) -> bool:
        return is_scheduled(self.options)

    @property
    def label(self) -> str:
        """`local_sgd local_steps=80`."""
        return label_of(self.method, self.options)

    def computes_as(self, other: "Variant") -> bool:
        """Whether the two differ in the length of a round and in the learning rate at most."""
        if self.method != other.method:
            return False
        left_out = (load_method(self.method, self.plugins).round_option, *OF_SCHEDULES)
        mine, its = ({**one.options, **dict.fromkeys(left_out)} for one in (self, other))
        return mine == its

    def of(self, base: RunRequest, **fields: Any) -> RunRequest:
        """The request of `base` by this method, with its options and `fields`, at a constant rate by default."""
        values = {name: getattr(base, name) for name in RunRequest.__struct_fields__}
        options = {**self.constant_rate(base), **self.options}
        return RunRequest(**{**values, "method": self.method, "method_options": options, **fields})

    def constant_rate(self, base: RunRequest) -> dict[str, Any]:
        """Options that keep the learning rate constant, where the defaults of the workload of `base` change it.

        A schedule spreads over the budget of a run. With one, a probe would end at the low rate of its last steps,
        and its curve would not be the first part of a longer run. Empty if the options choose a schedule.
        """
        plain = OptimizerOptions()
        return {name: getattr(plain, name) for name in self.own_schedule(base)}

    def own_schedule(self, base: RunRequest) -> dict[str, Any]:
        """The defaults of the workload of `base` that change the learning rate, unless the options choose."""
        kind = load_method(self.method, base.plugins)
        own = {option.name: option.default for option in dataclasses.fields(kind.Options)}
        if "schedule" not in own or {*self.options} & {*OF_SCHEDULES}:
            return {}
        workload = build_workload(base.workload, base.workload_options, base.plugins)
        chosen = {**own, **suited_defaults(kind, workload, self.method, self.options)}
        plain = OptimizerOptions()
        return {name: chosen[name] for name in OF_SCHEDULES if chosen[name] != getattr(plain, name)}


@dataclass(frozen=True, kw_only=True)
class EstimatedVariant:
    """A variant after step one.

    Attributes:
        memory_bytes: of the busiest node. fits: whether a node of the cluster has as much. None if unknown.
        step_s: seconds of a local step on the cluster, exchanges included. computing: the share of them in which
            nodes compute. here_s: seconds of a local step of all nodes on this machine. None if unknown.
        round_steps: local steps of a round. cell: its plan. trace: from sizes.
        why_not: the reason in a few words why it is not trained; empty if it may be.
        usual_place: as in `Method`.
    """

    variant: Variant
    memory_bytes: int | None = None
    fits: bool | None = None
    step_s: float | None = None
    computing: float | None = None
    here_s: float | None = None
    round_steps: int = 1
    cell: PlannedCell | None = None
    trace: Trace | None = None
    why_not: str = ""
    usual_place: int = 9


def had_constant_rate(config: RunConfig) -> bool:
    """Whether a run trained at a constant learning rate, so that a longer one begins with the same steps."""
    plain = OptimizerOptions()
    options = config.method_options
    return all(options.get(name, getattr(plain, name)) == getattr(plain, name) for name in ("schedule", "warmup"))


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


def tell_seconds_of(
    variant: Variant, found: Iterable[EstimatedVariant], plain: Variant
) -> Iterator[EstimatedVariant]:
    """Those of `found` whose recorded steps tell the seconds of `variant`, the best first; `plain` is the last.

    All nodes at once recorded them. So a variant without a probe competes with the others on equal terms.
    """
    known = list(found)
    yield from (one for one in known if one.variant.computes_as(variant))
    yield from (one for one in known if one.variant.label == plain.label)


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
