"""DiLoCo: local SGD whose mean change of a round is the gradient of an outer optimizer.

Douillard et al., "DiLoCo: Distributed low-communication training of language models", arXiv 2311.08105. Every node
takes `local_steps` steps of its inner optimizer, AdamW by default. Then the nodes average the changes of their
weights in one all-reduce, and all take the same outer step: SGD with Nesterov momentum. Floating-point buffers,
such as the statistics of BatchNorm, travel in the same message. They are averaged and take no outer step.

On one node only the outer step is left, which is SNOO (arXiv 2510.15830). It needs no network and may bring most of
the gain, so it is the control of every comparison.

With `group`, the nodes of a group train as one, as in `local_sgd`; the groups average their changes.

Inside a round the assembled model is that after an outer step on the changes so far, as `close_round` takes it.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Rate, Share
from istbench.base.options.options import option
from istbench.base.options.tunable import LEARNING_RATE, OUTER_MOMENTUM, OUTER_RATE
from istbench.fabric import Fabric
from istbench.methods.base import fitting
from istbench.methods.flat import flatten_in_place, floating_tensors
from istbench.methods.footprint import Footprint, tensor_bytes, trained
from istbench.methods.local_sgd import GroupedOptions, LocalSGD, RoundOptions
from istbench.methods.optimizer import RuleName
from istbench.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class OuterRoundOptions(RoundOptions):
    optimizer: RuleName = option(
        "adamw", "update rule of a local step; muon is for hidden matrices, adamw for the rest"
    )
    lr: Rate = option(0.0004, "learning rate of a local step", tune=LEARNING_RATE)
    outer_lr: Rate = option(0.7, "learning rate of the outer step", tune=OUTER_RATE)
    outer_momentum: Share = option(0.9, "Nesterov momentum of the outer step", tune=OUTER_MOMENTUM)
    inner_state: Literal["keep", "reset"] = option(
        "keep", "the optimizer's state at the end of a round: keep it, or start anew"
    )
    outer_rule: Literal["nesterov", "smol"] = option(
        "nesterov", "outer step: nesterov; smol only to compare with smol_diloco's table, it overshoots"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average_optimizer and self.inner_state == "reset":
            raise UserError("average_optimizer averages a state that inner_state=reset deletes; leave one out")


class OuterStep:
    """The weights at the start of a round and the outer momentum, for `flats`, flat tensors of live weights.

    The change of a round is the weights at its start minus those now. It has the sign of a gradient. The step is
    that of `torch.optim.SGD(lr=outer_lr, momentum=outer_momentum, nesterov=True)` with the mean change over nodes
    as the gradient, bit for bit.

    Nodes that start alike and apply the same mean changes keep the same start and momentum, bit for bit.
    """

    def __init__(self, flats: Iterable[Tensor], options: OuterRoundOptions) -> None:
        self._live = list(flats)
        self.options = options
        self.start = [flat.clone() for flat in self._live]
        self.momentum = [torch.zeros_like(flat) for flat in self._live]

    def changes(self) -> list[Tensor]:
        """The change of each flat tensor so far: new tensors."""
        return [start - live for start, live in zip(self.start, self._live, strict=True)]

    def apply(self, changes: Sequence[Tensor], keep: float = 0.0) -> None:
        """Step by the mean `changes`, which are overwritten; the live weights become the new start.

        keep: share of the live weights that stays, as Streaming DiLoCo mixes them with the new ones.
        """
        for start, momentum, change in zip(self.start, self.momentum, changes, strict=True):
            self._move(start, momentum, change)
        for live, start in zip(self._live, self.start, strict=True):
            if keep:
                live.lerp_(start, 1 - keep)
            else:
                live.copy_(start)

    def after(self, changes: Sequence[Tensor]) -> list[Tensor]:
        """The start after `apply(changes)`: new tensors. Nothing changes but `changes`, which are overwritten."""
        moved = [start.clone() for start in self.start]
        for start, momentum, change in zip(moved, self.momentum, changes, strict=True):
            self._move(start, momentum.clone(), change)
        return moved

    def part(self, slices: Sequence[slice]) -> Self:
        """The same weights and momentum, of one slice of each flat tensor."""
        return self._with(lambda flats: [flat[where] for flat, where in zip(flats, slices, strict=True)])

    def copy(self) -> Self:
        """A copy that shares no memory with this one, nor with the live weights."""
        return self._with(lambda flats: [flat.clone() for flat in flats])

    def _with(self, taken: Callable[[list[Tensor]], list[Tensor]]) -> Self:
        other = copy.copy(self)
        other._live, other.start, other.momentum = map(taken, (self._live, self.start, self.momentum))
        return other

    def _move(self, start: Tensor, momentum: Tensor, change: Tensor) -> None:
        """One step of `start` and `momentum` in place. `change` is overwritten."""
        momentum.mul_(self.options.outer_momentum).add_(change)
        change.add_(momentum, alpha=self.options.outer_momentum)
        start.add_(change, alpha=-self.options.outer_lr)

    def state_dict(self) -> dict[str, Any]:
        """The start and the momentum by the number of the flat tensor; the same on all nodes."""
        return {
            "start": {str(number): flat for number, flat in enumerate(self.start)},
            "momentum": {str(number): flat for number, flat in enumerate(self.momentum)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`. It leaves the live weights as they are.

        Raises:
            ValueError: for the state of other tensors.
        """
        for name, flats in (("start", self.start), ("momentum", self.momentum)):
            saved = state[name]
            if saved.keys() != {str(number) for number in range(len(flats))}:
                raise ValueError(f"the outer {name} of other tensors")
            for number, flat in enumerate(flats):
                flat.copy_(fitting(saved[str(number)], flat, f"the outer {name}"))


class SmolStep(OuterStep):
    """The outer step of the repository smol_diloco: in the long run 1.9 times as long as Nesterov's at .9."""

    def _move(self, start: Tensor, momentum: Tensor, change: Tensor) -> None:
        options = self.options
        momentum.mul_(options.outer_momentum).add_(change)
        start.add_(momentum, alpha=-options.outer_lr * (1 + options.outer_momentum))


class DiLoCo(LocalSGD):
    """Rounds of local steps, then an outer step by Nesterov momentum on the mean change of all nodes."""

    name = "diloco"
    usual_place = 2
    narrow_control = False
    exact_on_one_node = False
    control_nodes = 1

    @dataclass(frozen=True, kw_only=True)
    class Options(OuterRoundOptions, GroupedOptions):
        pass

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        super().setup(model, workload, fabric)
        self._flat = self._flat or flatten_in_place(floating_tensors(self._model))
        rule = SmolStep if self.options.outer_rule == "smol" else OuterStep
        self._outer = rule(self._parameters_of(self._flat), self.options)

    def _parameters_of(self, flats: Sequence[Tensor]) -> list[Tensor]:
        return [flat[: self._sizes[flat.dtype]] for flat in flats]

    def _buffers_of(self, flats: Sequence[Tensor]) -> list[Tensor]:
        return [flat[self._sizes[flat.dtype] :] for flat in flats]

    def _average(self) -> None:
        means = self._mean_changes("averaging changes")
        self._outer.apply(self._parameters_of(means))
        for buffer, mean in zip(self._buffers_of(self._flat), self._buffers_of(means), strict=True):
            buffer.copy_(mean)
        self._end_round()

    def _end_round(self) -> None:
        if self.options.average_optimizer:
            self._average_state()
        if self.options.inner_state == "reset":
            self._optimizer.state.clear()
        self._fabric.recorder.mark("round")

    def _mean_changes(self, name: str) -> list[Tensor]:
        """The nodes' mean changes so far, and their mean buffers, as flat tensors; one message for each dtype."""
        messages = []
        for change, buffers in zip(self._outer.changes(), self._buffers_of(self._flat), strict=True):
            messages.append(torch.cat([change, buffers]) if buffers.numel() else change)
            self._average_flat(messages[-1], name)
        return messages

    def assemble(self) -> nn.Module | None:
        if self._steps == 0:
            return self._model if self._fabric.rank == 0 else None
        means = self._mean_changes("assembling")
        return self._model_of(self._outer.after(self._parameters_of(means)), self._buffers_of(means))

    def _model_of(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> nn.Module | None:
        """On rank 0, a copy of the model with these flat values."""
        if self._fabric.rank:
            return None
        assembled = copy.deepcopy(self._model)
        flats = flatten_in_place(floating_tensors(assembled))
        for flat, *values in zip(flats, parameters, buffers, strict=True):
            torch.cat(values, out=flat)
        return assembled

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "outer": self._outer.state_dict()}

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        return keys[0] == "outer" or super().is_shared(keys)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._outer.load_state_dict(state["outer"])

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """That of `local_sgd`, with the start of a round, the outer momentum, and the message of changes."""
        averaged = super().footprint(model, workload, world_size, batch_size)
        parameters, all_values = tensor_bytes(trained(model)), tensor_bytes(floating_tensors(model))
        message = parameters + (all_values if all_values > parameters else 0)
        return replace(averaged, buffers=2 * parameters, round_buffers=max(message, averaged.round_buffers))
