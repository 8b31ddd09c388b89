"""What runs record of the lab they ran in, and what their workers need to know of it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A really shaped network, as a run sees it.

    Attributes:
        summary: in words. bandwidth: of every link, each way, bits/s. latency_s: one way, seconds.
        fabric_latency_s: seconds that the fabric must hold a message, where the network does not delay it.
        dilation: how many times slower than asked everything runs; 1 where every node has a core.
    """

    summary: str
    bandwidth: float
    latency_s: float
    fabric_latency_s: float
    dilation: float
