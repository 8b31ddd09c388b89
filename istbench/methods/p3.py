"""P3: priority-based parameter propagation (Jayarajan et al., MLSys 2019, arXiv 1905.03960).

The parameter server of `parameter_server`, with two changes. Parameters are cut into slices, so that a large one
does not hold up others and its own transfer, update and reply overlap. And slices are sent, updated and replied in
the order in which the next forward pass needs them, first layer first, although the backward pass makes the last
layer's gradients first. What a connection already holds cannot be overtaken, so it gets only a few slices at a
time.
"""

from dataclasses import dataclass, field

from torch import nn

from istbench.errors import UserError
from istbench.methods.parameter_server import ParameterServer
from istbench.served import ServedModel


class P3(ParameterServer):
    """A parameter server that moves small slices, the most urgent for the next forward pass first."""

    name = "p3"

    @dataclass(frozen=True, kw_only=True)
    class Options(ParameterServer.Options):
        """Options of `p3`."""

        slice_params: int = field(
            default=50_000, metadata={"help": "parameters in a slice; 0 leaves tensors whole"}
        )
        priority: bool = field(default=True, metadata={"help": "most urgent slices first"})
        window: int = field(default=2, metadata={"help": "slices a connection may hold at a time"})

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.slice_params < 0:
                raise UserError(f"slice_params must be zero or more, not {self.slice_params}")
            if self.window < 1:
                raise UserError(f"window must be at least 1, not {self.window}")

    def _serve(self, model: nn.Module) -> ServedModel:
        options = self.options
        return ServedModel(
            model,
            self._fabric,
            options.build,
            slice_params=options.slice_params,
            priority=options.priority,
            window=options.window,
        )
