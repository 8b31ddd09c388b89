"""The answers of a host about its GPUs, and about an all-reduce of all hosts."""

import msgspec

from istbench.base.options.numbers import Count, Natural, Seconds
from istbench.base.options.texts import Message
from istbench.cluster.collective import Backend


class BusBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce of `bytes` that took `seconds` on all nodes. right: whether its values are the mean."""

    backend: Backend
    nodes: Count
    bytes: Count
    seconds: Seconds
    right: bool

    @property
    def bits_per_s(self) -> float:
        """Bits each node sends in a second: bandwidth of a link that carries a ring all-reduce in this time."""
        return 8 * self.bytes * 2 * (self.nodes - 1) / self.nodes / self.seconds


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of GPUs that torch has, and the line of `broken_copies` between them."""

    count: Natural
    broken: Message
