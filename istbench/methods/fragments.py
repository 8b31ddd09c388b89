"""Fragments of a model: runs of whole layers of about as many parameters, and the flight of their changes."""

from collections import Counter
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.background_mean import BackgroundMean, Format
from istbench.methods.base import counted
from istbench.methods.flat import floating_tensors, places
from istbench.methods.outer_step import OuterStep
from istbench.methods.planned_mean import balanced_runs


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The trained parameters of `model`, in its order, by the module that holds them."""
    every = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    named = groupby(every, key=lambda pair: pair[0].rpartition(".")[0])
    return [[parameter for _, parameter in group] for _, group in named]


def fragment_slices(model: nn.Module, count: int) -> list[list[slice]]:
    """The fragments of `model`, each as a slice of the flat parameters of every dtype (`flatten_in_place`).

    A fragment is a run of whole layers, at least one. The largest is as small as possible.
    """
    layers = layers_of(model)
    ends = Counter(dict.fromkeys((tensor.dtype for tensor in floating_tensors(model)), 0))
    fragments = []
    for run in balanced_runs([sum(parameter.numel() for parameter in layer) for layer in layers], count):
        starts = ends.copy()
        for parameter in (parameter for layer in layers[run.start : run.stop] for parameter in layer):
            ends[parameter.dtype] += places(parameter)
        fragments.append([slice(starts[dtype], ends[dtype]) for dtype in ends])
    return fragments


class Flight:
    """The changes of fragment `number` on their way to all nodes. They land `delay` local steps after they leave.

    Half of the messages leave when the others have had half of these steps. On landing, the `fragment` takes its
    outer step by the mean change, and `alpha` of its live weights stays. Every rank calls all methods but
    `state_dict` alike.
    """

    def __init__(
        self, fabric: Fabric, fragment: OuterStep, number: int, delay: int, alpha: float, send: Format
    ) -> None:
        self.number = number
        self._fragment, self._delay, self._alpha, self._device = fragment, delay, alpha, fabric.device
        self._steps = 0  # since the changes left
        self.mean = BackgroundMean(fabric, sum(len(start) for start in fragment.start), send)

    def leave(self) -> None:
        """Send the changes on their way."""
        self.mean.start(torch.cat([change.float() for change in self._fragment.changes()]))
        self._turn()

    def step(self) -> bool:
        """After a local step: whether the fragment has landed."""
        self._steps += 1
        self._turn()
        if self._steps >= self._delay:
            self.land()
            return True
        return False

    def _turn(self) -> None:
        if self._steps >= (self._delay + 1) // 2 and not self.mean.turned:
            self.mean.turn()

    def land(self) -> None:
        """Let the fragment land now."""
        self._steps = self._delay
        self._turn()
        self._move(self._fragment, self.mean.mean())

    def land_on(self, fragment: OuterStep) -> None:
        """Let a copy of the fragment land. The flight goes on. Finish the transfers before."""
        self._move(fragment, self.mean.peek())

    def _move(self, fragment: OuterStep, mean: Tensor) -> None:
        parts = mean.split([len(start) for start in fragment.start])
        changes = [part.to(start.dtype) for part, start in zip(parts, fragment.start, strict=True)]
        fragment.apply(changes, self._alpha)

    def state_dict(self) -> dict[str, Any]:
        """The messages that have arrived, and the local steps. Finish the transfers before."""
        return {"fragment": self.number, "steps": self._steps, "mean": self.mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`. The messages have arrived.

        Raises:
            UserError, ValueError: for the state of another flight.
        """
        self._steps = counted(state, "steps", below=self._delay)
        self.mean.load_state_dict(state["mean"], self._device)
