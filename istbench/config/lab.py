"""What a run records of the lab it ran in."""

from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.config.numbers import Duration, Natural


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """A really shaped network inside one machine.

    Attributes:
        summary: in words.
        bandwidth: of every link, each way, bits/s. burst_bytes: what an idle link carries at once, as on the wire.
        latency_s: added one way between two nodes, seconds. fabric_latency_s: what of it the fabric waits for.
        dilation: how many times slower than asked everything runs; clocks are divided by it.
    """

    summary: str
    bandwidth: Annotated[float, Meta(gt=0, le=1e18)]
    burst_bytes: Natural = 0
    latency_s: Duration = 0.0
    fabric_latency_s: Duration = 0.0
    dilation: Annotated[float, Meta(ge=1, le=1e6)] = 1.0
