"""The entry of an optimizer: its name, its options and its state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """A rule that `--set optimizer=NAME` names.

    An installed package adds its own by entry points of the group `istbench.optimizers`, each an `UpdateRule`.

    Attributes:
        name: as typed.
        build: the torch optimizer over parameter groups, from the options (`OptimizerOptions`).
        options: names of the options that not every rule has, such as `momentum`.
        slots: names of the tensors of its own shape that the rule keeps for a parameter with this many dimensions.
        kept: all names in the state of such a parameter after its first step; empty if unknown.
        numbers: those of `kept` that are one number each; all others have the shape of the parameter.
        as_vectors: the parameters of a model that the rule steps as vectors, whatever their dimensions.
        whole_matrices: whether a step of a part of a matrix differs from that part of the whole step.
        made_by: the class of optimizers with this rule, which a checkpoint names and a recorded script may have.
    """

    name: str
    build: Callable[[list[dict[str, Any]], Any], torch.optim.Optimizer]
    made_by: type[torch.optim.Optimizer]
    options: frozenset[str] = frozenset()
    slots: Callable[[Any, int], tuple[str, ...]] = lambda options, dimensions: ()
    kept: Callable[[int], tuple[str, ...]] = lambda dimensions: ()
    numbers: frozenset[str] = frozenset({"step"})
    as_vectors: Callable[[nn.Module], list[Tensor]] = lambda model: []
    whole_matrices: bool = False

    def counts(self, dimensions: int) -> list[str]:
        """Names of the numbers that the rule keeps for a parameter with this many dimensions."""
        return [name for name in self.kept(dimensions) if name in self.numbers]
