"""The optimizer of rows: its rule, hyperparameters and moments."""

import math
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np


class Rule(IntEnum):
    """The update rule of rows.

    SGD and LAZY_ADAM update only rows that a sample uses; moments of other rows stay. ADAM updates all rows, as
    torch.optim.Adam does; LAZY_ADAM is torch.optim.SparseAdam.
    """

    SGD = 1
    LAZY_ADAM = 2
    ADAM = 3


@dataclass(kw_only=True)
class RowOptimizer:
    """The optimizer of weight [n, width] and bias [n].

    Attributes:
        steps: their number so far. moments: float32 [2, n, width], Adam's first and second; bias_moments: float32
            [2, n]. SGD has no rows in either.
    """

    rule: Rule
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    steps: int = 0
    moments: np.ndarray = field(default_factory=lambda: np.empty((2, 0, 0), np.float32))
    bias_moments: np.ndarray = field(default_factory=lambda: np.empty((2, 0), np.float32))

    @classmethod
    def of(
        cls, rule: Rule, weight: np.ndarray, bias: np.ndarray, betas: tuple[float, float] = (0.9, 0.999)
    ) -> "RowOptimizer":
        """A new optimizer of `weight` and `bias`."""
        if rule == Rule.SGD:
            return cls(rule=rule)
        return cls(
            rule=rule,
            beta1=betas[0],
            beta2=betas[1],
            moments=np.zeros((2, *weight.shape), np.float32),
            bias_moments=np.zeros((2, len(bias)), np.float32),
        )

    def next_rates(self, lr: float) -> np.ndarray:
        """Count a step with learning rate `lr`; returns the factors of `kernels.backward`, float32 [7]."""
        self.steps += 1
        if self.rule == Rule.SGD:
            return np.array([lr, 0, 0, 0, 0, 0, 0], np.float32)
        first, second = 1 - self.beta1**self.steps, 1 - self.beta2**self.steps
        numbers = (lr / first, 1 / math.sqrt(second), self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2)
        return np.array([*numbers, self.epsilon], np.float32)
