"""A variant: a method with options that an advice may recommend, and what step one knows of it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from istbench.base.options.options import label_of
from istbench.base.options.run import RunConfig, RunRequest
from istbench.cluster.trace import Trace
from istbench.methods.optimizer import OptimizerOptions
from istbench.node.registry import build_method, build_workload, load_method, suited_defaults
from istbench.plan.planned_cell import PlannedCell
from istbench.studies.advise.candidate import is_scheduled

_ROUNDS = ("local_steps", "accumulate")  # options that change the length of a round, and not what a step computes
_SCHEDULE = ("schedule", "warmup", "decay_at", "decay", "cosine_end")


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
        return build_method(self.method, self.options, plugins=self.plugins).joint_steps()

    @property
    def scheduled(self) -> bool:
        return is_scheduled(self.options)

    @property
    def label(self) -> str:
        """`local_sgd local_steps=80`."""
        return label_of(self.method, self.options)

    def computes_as(self, other: "Variant") -> bool:
        """Whether the two differ in the length of a round and in the learning rate at most."""
        mine, its = ({**one.options, **dict.fromkeys((*_ROUNDS, *_SCHEDULE))} for one in (self, other))
        return self.method == other.method and mine == its

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
        if "schedule" not in own or {*self.options} & {*_SCHEDULE}:
            return {}
        workload = build_workload(base.workload, base.workload_options, base.plugins)
        chosen = {**own, **suited_defaults(kind, workload, self.method, self.options)}
        plain = OptimizerOptions()
        return {name: chosen[name] for name in _SCHEDULE if chosen[name] != getattr(plain, name)}


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
