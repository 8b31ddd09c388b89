"""The training losses of a segment; a step does not wait for the GPU to add them up."""

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from istbench.base.errors import diverged
from istbench.fabric import Fabric

_WINDOW = 1024  # losses on the device before the host reads them


class Losses:
    """Losses of this rank in consecutive steps; `mean` averages them over steps and ranks.

    before: steps of the same segment before a checkpoint, and the sum of their losses.
    samples: of each rank in a step; by default they are equal.
    """

    def __init__(
        self, device: torch.device, before: tuple[int, float] = (0, 0.0), samples: Sequence[int] = ()
    ) -> None:
        self._samples = samples
        self._window = torch.zeros(_WINDOW, dtype=torch.float64, device=device)
        self._filled = 0
        self._steps, self._sum = before
        self._bad: tuple[int, float] | None = None  # steps before the first loss that is not finite, and that loss

    def add(self, loss: Tensor) -> None:
        """Add the scalar `loss` of the next step."""
        self._window[self._filled] = loss
        self._filled += 1
        if self._filled == _WINDOW:
            self._look()

    def so_far(self) -> tuple[int, float]:
        """The number of steps and the sum of their losses."""
        self._look()
        return self._steps, self._sum

    def mean(self, fabric: Fabric, first: int, remedy: str = "") -> float:
        """The mean over steps and ranks. Every rank must call it. first: steps of the run before this segment.

        Raises:
            RunFailed: a loss is not finite. All ranks raise the same message, which ends with `remedy`.
        """
        self._look()
        sums = fabric.numbers(self._sum)
        if all(map(math.isfinite, sums)):
            parts = self._samples or [1] * len(sums)
            return math.fsum(map(operator.mul, sums, parts)) / self._steps / sum(parts)
        after, value = self._bad or (self._steps, 0.0)
        steps, values = fabric.numbers(after), fabric.numbers(value)
        node = steps.index(min(steps))
        step = first + round(steps[node]) + 1
        raise diverged(values[node], f"step {step} on node {node}{remedy}")

    def _look(self) -> None:
        for value in self._window[: self._filled].tolist():
            if self._bad is None and not math.isfinite(value):
                self._bad = self._steps, value
            self._sum += value
            self._steps += 1
        self._filled = 0
