"""Transfers beside computing by gloo's asynchronous messages, instead of the fabric's own transport."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from istbench.fabric import Fabric
from istbench.fabric.pending import Transfers


class OverMessages:
    """`fabric` with another `exchange_async`, for measurements on CPUs without a trace."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fabric, name)

    def exchange_async(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str) -> Transfers:
        """Like the fabric's."""
        # Receives first: gloo sends only to a posted receive.
        operations = [dist.P2POp(dist.irecv, buffer, peer) for peer, buffer in receives.items() if buffer.numel()]
        operations += [dist.P2POp(dist.isend, buffer, peer) for peer, buffer in sends.items() if buffer.numel()]
        works = dist.batch_isend_irecv(operations) if operations else []

        def complete() -> None:
            for work in works:
                work.wait()
            operations.clear()  # until here they keep the sent buffers alive

        return Transfers(complete, self._fabric.recorder, ())
