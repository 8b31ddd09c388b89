"""A lab whose nodes get a share of a core each, on links of full speed: slower machines on the same network."""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.run import Lab
from istbench.launch.lab.network import ShapedNetwork


@dataclass(frozen=True, kw_only=True)
class LimitedCores(ShapedNetwork):
    """A shaped network whose nodes get `share` of a core each, by control groups. No clock is divided.

    Raises:
        UserError: for more nodes than cores.
    """

    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes > cores():
            raise UserError(f"slower nodes need a core each: use at most {cores()} nodes with --scaling")

    @cached_property
    def lab(self) -> Lab:
        """The record for run headers."""
        lab = super().lab
        return msgspec.structs.replace(lab, summary=f"{lab.summary}, {self.share:g} of a core a node")

    def _limited(self, rank: int) -> float:
        return self.share
