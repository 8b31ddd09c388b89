"""The optimizer of a method's local steps: its options, and its state for checkpoints."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.base.entry_points import with_packages
from istbench.base.errors import UserError
from istbench.base.options.numbers import Part, Rate, Share
from istbench.base.options.options import option
from istbench.base.options.tunable import LEARNING_RATE
from istbench.methods.update_rule import UpdateRule

_ADAM_SLOTS = ("exp_avg", "exp_avg_sq")
_DECAY_AT, _DECAY = (0.5, 0.75), 0.1
_BETAS = (0.9, 0.999)


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's Muon for hidden matrices and its AdamW for all other parameters, as one optimizer.

    Muon orthogonalises the momentum of a whole matrix (Jordan et al., 2024). Its authors leave the input and output
    layers to AdamW. `match_rms_adamw` scales its updates to the size of those of AdamW (Liu et al., arXiv
    2502.16982): one learning rate and weight decay serve both.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._parts: list[torch.optim.Optimizer] = []
        if matrices := _only(groups, lambda dimensions: dimensions == 2):
            muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            self._parts.append(muon)
        if others := _only(groups, lambda dimensions: dimensions != 2):
            self._parts.append(_fused(torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=weight_decay)))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        first = 0
        for part in self._parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            first = last

    def __setstate__(self, state: dict[str, Any]) -> None:  # called by `load_state_dict`, with other objects
        super().__setstate__(state)
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def _only(groups: list[dict[str, Any]], wanted: Callable[[int], bool]) -> list[dict[str, Any]]:
    """`groups` without the parameters whose dimensions are not `wanted`, and without empty groups."""
    found = [
        {**group, "params": [own for own in group["params"] if wanted(_dimensions(own, group))]} for group in groups
    ]
    return [group for group in found if group["params"]]


def _dimensions(parameter: Tensor, group: dict[str, Any]) -> int:
    """The dimensions of `parameter`, a member of `group`, for an update rule."""
    return 1 if group.get("as_vectors") else parameter.dim()


def outer_layers(model: nn.Module) -> list[Tensor]:
    """Tables of embeddings, and the first and the last weight of `model` in the order of its parameters."""
    tables = [own.weight for own in model.modules() if isinstance(own, nn.Embedding | nn.EmbeddingBag)]
    weights = [own for _, own in model.named_parameters(remove_duplicate=False) if own.dim() > 1]
    return [*tables, *weights[:1], *weights[-1:]]


def _fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:  # None leaves it to torch, which steps all tensors of a GPU at once
        group["fused"] = all(parameter.is_cpu for parameter in group["params"]) or None
    return optimizer


def _sgd(groups: list[dict[str, Any]], options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        groups,
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        nesterov=options.nesterov,
    )


def _adam(
    made_by: Callable[..., torch.optim.Optimizer], groups: list[dict[str, Any]], options: Any
) -> torch.optim.Optimizer:
    made = made_by(groups, lr=options.lr, betas=options.betas, weight_decay=options.weight_decay)
    return made if made_by is MuonAndAdamW else _fused(made)


_OWN = (
    UpdateRule(
        name="sgd",
        build=_sgd,
        made_by=torch.optim.SGD,
        options=frozenset({"momentum", "nesterov"}),
        slots=lambda options, dimensions: ("momentum_buffer",) if options.momentum else (),
        kept=lambda dimensions: ("momentum_buffer",),
    ),
    *(
        UpdateRule(
            name=name,
            build=partial(_adam, kind),
            made_by=kind,
            options=frozenset({"beta1", "beta2"}),
            slots=lambda options, dimensions: _ADAM_SLOTS,
            kept=lambda dimensions: (*_ADAM_SLOTS, "step"),
        )
        for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW))
    ),
    UpdateRule(
        name="muon",
        build=partial(_adam, MuonAndAdamW),
        made_by=MuonAndAdamW,
        options=frozenset({"beta1", "beta2"}),
        slots=lambda options, dimensions: ("momentum_buffer",) if dimensions == 2 else _ADAM_SLOTS,
        kept=lambda dimensions: ("momentum_buffer",) if dimensions == 2 else (*_ADAM_SLOTS, "step"),
        as_vectors=outer_layers,
        whole_matrices=True,
    ),
)
_TABLE: tuple[UpdateRule, ...] = with_packages(_OWN, "optimizers", UpdateRule)

RULES = {rule.name: rule for rule in _TABLE}
"""Every update rule by its name."""

_OF_SOME_RULES = frozenset().union(*(rule.options for rule in _TABLE))
OF_RULES = frozenset({"optimizer", "lr", "weight_decay", "weight_decay_of"}) | _OF_SOME_RULES
"""Options that choose an update rule, or have values that suit it."""

if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[tuple(RULES)]


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of the optimizer of local steps. Workloads set their own defaults."""

    optimizer: RuleName = option(
        "sgd", "update rule of a local step; muon is for hidden matrices, adamw for the rest"
    )
    lr: Rate = option(0.01, "learning rate", tune=LEARNING_RATE)
    momentum: Share = option(0.0, "momentum of sgd")
    weight_decay: Rate = option(0.0, "weight decay")
    nesterov: bool = option(False, "use Nesterov momentum, with sgd")
    schedule: Literal["constant", "step", "cosine"] = option(
        "constant", "learning rate over the budget of local steps"
    )
    warmup: Share = option(0.0, "share of the budget in which the learning rate rises to lr")
    decay_at: Annotated[tuple[Part, ...], Meta(min_length=1, max_length=100)] = option(
        _DECAY_AT, "shares of the budget after which schedule=step multiplies by decay"
    )
    decay: Part = option(_DECAY, "factor of schedule=step")
    cosine_end: Share = option(0.0, "share of lr at which schedule=cosine ends")
    beta1: Share = option(_BETAS[0], "decay of the mean gradient, with adam and adamw")
    beta2: Share = option(_BETAS[1], "decay of the mean squared gradient, with adam and adamw")
    weight_decay_of: Literal["all", "matrices"] = option(
        "all", "parameters with weight decay: all, or matrices without biases and normalisation weights"
    )

    def __post_init__(self) -> None:
        for name in sorted(_OF_SOME_RULES - self.rule.options):
            if getattr(self, name) != getattr(OptimizerOptions, name):
                others = ", ".join(rule.name for rule in RULES.values() if name in rule.options)
                raise UserError(f"{name} is an option of {others}, not of {self.optimizer}; leave it out")
        if self.nesterov and not self.momentum:
            raise UserError("nesterov needs momentum, which is 0; set momentum=0.9, or leave nesterov out")
        if self.schedule != "step" and (self.decay_at, self.decay) != (_DECAY_AT, _DECAY):
            name = "decay" if self.decay_at == _DECAY_AT else "decay_at"
            raise UserError(f"{name} is an option of schedule=step, not of {self.schedule}")
        if self.cosine_end and self.schedule != "cosine":
            raise UserError(f"cosine_end is an option of schedule=cosine, not of {self.schedule}")
        if self.weight_decay_of != "all" and not self.weight_decay:
            raise UserError("weight_decay_of needs weight_decay, which is 0; set weight_decay=0.1, or leave it out")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of local step number `step`, from 0, in a budget of `steps`; a pure function of both.

        Raises:
            ValueError: if the schedule has no such step.
        """
        if self.schedule == "constant" and not self.warmup:
            return self.lr
        if not 0 <= step < steps:
            raise ValueError(f"no local step {step} in a budget of {steps}")
        warm = round(self.warmup * steps)
        rate = self.lr * min(1.0, (step + 1) / (warm + 1))
        if self.schedule == "step":
            rate *= self.decay ** sum(step >= round(share * steps) for share in self.decay_at)
        elif self.schedule == "cosine":
            share = (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm))) / 2
            rate *= self.cosine_end + (1 - self.cosine_end) * share
        return rate

    @property
    def rule(self) -> UpdateRule:
        return RULES[self.optimizer]

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's decay rates of the mean gradient and of the mean squared gradient."""
        return self.beta1, self.beta2

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors of its own shape that the optimizer keeps for a parameter (muon: for no matrix)."""
        return self.rule.slots(self, 1)

    def state_bytes(self, parameters: Iterable[Tensor], as_vectors: Iterable[Tensor] = ()) -> int:
        """Bytes of the optimizer's tensors for `parameters`, of which it steps some `as_vectors`."""
        outer = set(map(id, as_vectors))
        sized = ((own.nbytes, 1 if id(own) in outer else own.dim()) for own in parameters)
        return sum(size * len(self.rule.slots(self, dimensions)) for size, dimensions in sized)

    def groups(self, parameters: Iterable[Tensor], part_of: Tensor | None = None) -> list[dict[str, Any]]:
        """`parameters` as torch's parameter groups, which differ in weight decay; one group if all have the same.

        part_of: the parameter of which all of them are parts, in another shape.
        """
        every = list(parameters)
        if not self.weight_decay or self.weight_decay_of == "all":
            return [{"params": every}]
        matrices = [own for own in every if (own if part_of is None else part_of).dim() > 1]
        others = [own for own in every if (own if part_of is None else part_of).dim() <= 1]
        return [{"params": matrices, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]

    def build(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        part_of: Tensor | None = None,
        as_vectors: Iterable[Tensor] = (),
    ) -> torch.optim.Optimizer:
        """The optimizer over `parameters`, or over some of `groups`, with `part_of` as there.

        as_vectors: those of `parameters` that the rule steps as vectors (`UpdateRule.as_vectors` of their model).
        On a CPU Adam is torch's fused one: one pass, 2 to 10 times faster.
        """
        given: list[Any] = list(parameters)
        groups = given if given and isinstance(given[0], dict) else self.groups(given, part_of)
        if outer := set(map(id, as_vectors)):
            groups = [
                {**group, "params": [own for own in group["params"] if (id(own) in outer) is apart], **mark}
                for apart, mark in ((False, {}), (True, {"as_vectors": True}))
                for group in groups
            ]
        return self.rule.build(groups, self)


if _strange := sorted(_OF_SOME_RULES - {field.name for field in fields(OptimizerOptions)}):
    raise UserError(f"an update rule has the option {_strange[0]}, which OptimizerOptions lacks")


@dataclass(frozen=True, kw_only=True)
class ClippedOptions(OptimizerOptions):
    """Options of a method that has the whole gradient of a node before its local step."""

    clip: Rate = option(0.0, "largest norm of a node's gradient in a local step; 0 leaves it as it is")

    def clip_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Scale the gradients of `parameters` so that their joint norm is at most `clip`."""
        if self.clip:
            nn.utils.clip_grad_norm_(parameters, self.clip)


def is_fused_on_cpu(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `build` makes such an optimizer fused on a CPU, with steps in place."""
    return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of `optimizer` subtracts the gradient times the rate, and nothing else."""
    groups = optimizer.param_groups
    return type(optimizer) is torch.optim.SGD and not any(
        group["momentum"] or group["weight_decay"] or group["maximize"] for group in groups
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def started(optimizer: torch.optim.Optimizer, parameter: Tensor, slots: Sequence[str]) -> list[Tensor]:
    """The optimizer's tensors `slots` of `parameter`. Before its first gradient, this makes them.

    They are zeros, as the optimizer itself would make them, so its next step is the same.
    """
    state = optimizer.state[parameter]
    for slot in slots:
        if not isinstance(state.get(slot), Tensor):
            state[slot] = torch.zeros_like(parameter)
            if slot != "momentum_buffer":
                state.setdefault("step", torch.zeros(()))
    return [state[slot] for slot in slots]


def state_tensors(optimizer: torch.optim.Optimizer, options: OptimizerOptions) -> Iterator[Tensor]:
    """The tensors that an optimizer of `options` keeps for trained parameters, made where there are none."""
    for group in optimizer.param_groups:
        for own in (own for own in group["params"] if own.requires_grad):
            yield from started(optimizer, own, options.rule.slots(options, _dimensions(own, group)))


def update_counts(
    optimizer: torch.optim.Optimizer, options: OptimizerOptions, among: Collection[int] | None = None
) -> list[Tensor]:
    """The numbers of updates that Adam keeps for trained parameters, made where there are none; `among` these ids.

    A node updates a parameter only if its minibatch gives it a gradient. Nodes that average Adam's moments average
    these numbers too. Moments after t updates have the weight 1 - beta^t. Adam divides them by it (Kingma and Ba,
    ICLR 2015, section 3). So the means have the mean weight of the nodes. 1 - beta^t is concave in t: at the mean
    number of updates it comes nearer to the mean weight than at the largest number, for both betas.
    """
    return [
        optimizer.state[own].setdefault(name, torch.zeros(()))
        for group in optimizer.param_groups
        for own in group["params"]
        if own.requires_grad and (among is None or id(own) in among)
        for name in options.rule.counts(_dimensions(own, group))
    ]


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dictionary of `optimizer` with string keys, for checkpoints."""
    state = optimizer.state_dict()
    return {**state, "state": {str(index): slots for index, slots in state["state"].items()}}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The inverse of `optimizer_state`.

    Raises:
        ValueError: for the state of another optimizer, or over other parameters.
    """
    slots = {int(index): value for index, value in state["state"].items()}
    fresh = optimizer.state_dict()["param_groups"]
    if len(fresh) != len(state["param_groups"]) or any(
        not own.keys() <= saved.keys() or _kind({name: saved[name] for name in own}) != _kind(own)
        for own, saved in zip(fresh, state["param_groups"], strict=True)
    ):  # a step may have added settings
        raise ValueError("the state of another optimizer")
    parameters = [(own, _dimensions(own, group)) for group in optimizer.param_groups for own in group["params"]]
    if not all(_fits(slots[index], *parameters[index], type(optimizer)) for index in slots):
        raise ValueError("the state of an optimizer over other parameters")
    optimizer.load_state_dict({**state, "state": slots})
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            # torch's fused kernels walk a parameter and its slots by addresses alone.
            of_slot = isinstance(value, Tensor) and value.shape == parameter.shape
            if of_slot and value.stride() != parameter.stride():
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _kind(value: Any) -> Any:
    """A setting of an optimizer without its numbers, which may change between runs."""
    if isinstance(value, dict):
        return {key: item if key == "params" else _kind(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_kind(item) for item in value]
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    return float if isinstance(value, int | float) and not isinstance(value, bool) else value


def _fits(slots: dict[str, Any], parameter: Tensor, dimensions: int, rule: type[torch.optim.Optimizer]) -> bool:
    """Whether `slots` can be the state of `parameter` in an optimizer of class `rule`."""
    known = next((known for known in RULES.values() if known.made_by is rule), None)
    names = () if known is None else known.kept(dimensions)
    if known is None or not names or slots in ({}, {"momentum_buffer": None}):  # nothing kept so far
        return True
    shapes = {name: torch.Size() if name in known.numbers else parameter.shape for name in names}
    return shapes.keys() <= slots.keys() and all(
        isinstance(slots[name], Tensor) and slots[name].shape == shape for name, shape in shapes.items()
    )
