"""The outer step of DiLoCo and its kin: SGD with Nesterov momentum on the change of a round.

Douillard et al., "DiLoCo", arXiv 2311.08105. The change of a round is the weights at its start minus those now. It
has the sign of a gradient. The step is that of `torch.optim.SGD(lr=outer_lr, momentum=outer_momentum,
nesterov=True)` with the mean change over nodes as the gradient, bit for bit.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from istbench.base.options.numbers import Rate, Share
from istbench.base.options.options import option
from istbench.base.options.tunable import OUTER_MOMENTUM, OUTER_RATE
from istbench.methods.base import fitting


@dataclass(frozen=True, kw_only=True)
class OuterOptions:
    outer_lr: Rate = option(0.7, "learning rate of the outer step", tune=OUTER_RATE)
    outer_momentum: Share = option(0.9, "Nesterov momentum of the outer step", tune=OUTER_MOMENTUM)


class OuterStep:
    """The weights at the start of a round and the outer momentum, for `flats`, flat tensors of live weights.

    Nodes that start alike and apply the same mean changes keep the same start and momentum, bit for bit.
    """

    def __init__(self, flats: Iterable[Tensor], options: OuterOptions) -> None:
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
