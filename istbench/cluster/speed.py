"""The work of a local step, the speed of a machine, and from both the seconds of the step."""

from typing import Annotated

import msgspec

from istbench.base.options.numbers import Amount

GIGA = 1e9
Giga = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one node in a local step, as the mean over nodes.

    Attributes:
        operations: floating-point operations of matrix products and convolutions.
        bytes: read and written by all other operations.
        gathered: read and written by kernels of the method's own, in rows scattered over memory.
    """

    operations: Amount
    bytes: Amount
    gathered: Amount = 0.0


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of one node: effective GFLOP/s of matrix products, and GB/s of memory.

    memory_gb_per_s: of arrays beyond the caches, read and written in order. gather_gb_per_s: of their rows, read in
    random order. core_gb_per_s: as the first, of one core while the others rest.
    """

    gflops: Giga
    memory_gb_per_s: Giga
    gather_gb_per_s: Giga | None = None
    core_gb_per_s: Giga | None = None

    def seconds(self, work: StepWork) -> float:
        """Seconds of `work`, one kind after the other. Without a speed of gathering, all bytes count alike."""
        gathering = self.gather_gb_per_s or self.memory_gb_per_s
        return (
            work.operations / self.gflops + work.bytes / self.memory_gb_per_s + work.gathered / gathering
        ) / GIGA
