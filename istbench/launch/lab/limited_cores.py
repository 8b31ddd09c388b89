"""A lab whose nodes get a share of a core each, on links of full speed: slower machines on the same network."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.run import Lab
from istbench.launch.lab import control_groups, namespaces
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

    def enter(self, rank: int) -> None:
        """Move the calling process to the namespace, the core and the control group of node `rank`."""
        super().enter(rank)
        control_groups.join(_group(rank))

    @contextlib.contextmanager
    def built(self) -> Iterator[None]:
        """Build the network and its control groups; see `ShapedNetwork.built`."""
        control_groups.check()
        with super().built():
            for rank in range(self.nodes):
                control_groups.limit(_group(rank), self.share)
            yield


def _group(rank: int) -> str:
    return f"{namespaces.PREFIX}{rank}"
