"""P3: priority-based parameter propagation (Jayarajan et al., MLSys 2019, arXiv 1905.03960).

P3 is `parameter_server` with two changes:

- It cuts parameters into slices. So a large parameter does not delay others, and the transfer, update and reply of
its slices overlap.
- Workers and servers send, update and reply in the order in which the next forward pass needs the slices: first
layer first. The backward pass computes gradients in the opposite order.

No slice can overtake those that a connection already holds, so a connection holds only a few at a time.
"""

from dataclasses import dataclass
from typing import Any

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, CountOrNone
from istbench.base.options.options import option
from istbench.base.options.tunable import Tunable
from istbench.methods.parameter_server import ParameterServer

_WINDOW = 2
_SLICES = Tunable(low=0.25, high=4, of_default=True, scale="log", costs=True)
_WINDOWS = Tunable(low=1, high=8, scale="log", costs=True)


class P3(ParameterServer):
    """A parameter server that moves small slices, the most urgent for the next forward pass first."""

    name = "p3"

    @dataclass(frozen=True, kw_only=True)
    class Options(ParameterServer.Options):
        slice_params: CountOrNone = option(50_000, "parameters in a slice; 0 leaves tensors whole", tune=_SLICES)
        priority: bool = option(True, "send the most urgent slices first")
        window: Count = option(_WINDOW, "most slices in flight on a connection", tune=_WINDOWS)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.slice_params and self.split_params:
                raise UserError("split_params is for slice_params=0: slices are dealt to all servers anyway")
            if self.window != _WINDOW and not self.priority:
                raise UserError(
                    f"window={self.window} limits how far slices overtake each other, but with priority=false none "
                    "does; leave window out"
                )

    def _slicing(self) -> dict[str, Any]:
        options = self.options
        return {"slice_params": options.slice_params, "priority": options.priority, "window": options.window}
