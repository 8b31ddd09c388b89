"""The largest entries of each chunk of a flat tensor as a message, and their mean over nodes."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_CHUNK = 2**15
"""Entries of a chunk. The place of the last one just fits in an int16."""


@dataclass(frozen=True)
class Chunks:
    """A flat tensor of `length` entries in chunks of `size`; a node sends `top` entries of each chunk.

    The last chunk may be shorter. A node sends all of it if it has fewer than `top` entries.
    """

    length: int
    size: int
    top: int

    @property
    def sent(self) -> int:
        """Number of entries that a node sends."""
        whole, rest = divmod(self.length, self.size)
        return whole * self.top + min(self.top, rest)

    def message_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a message of values of `dtype`."""
        return self.sent * (dtype.itemsize + self._place_type.itemsize)

    def largest(self, values: Tensor) -> Tensor:
        """Places in `values` [length] of the entries to send, int64 [sent], chunk after chunk."""
        whole = self.length // self.size
        sizes, rest = values.abs().split([whole * self.size, self.length - whole * self.size])
        inside = sizes.view(whole, self.size).topk(self.top, sorted=False).indices.flatten()
        last = rest.topk(min(self.top, len(rest)), sorted=False).indices
        return torch.cat([inside, last]) + self._starts(values.device)

    def packed(self, values: Tensor, places: Tensor) -> Tensor:
        """The entries of `values` at `places` as bytes: all values, then all places in their chunks."""
        inside = (places - self._starts(values.device)).to(self._place_type)
        return torch.cat([values[places].view(torch.uint8), inside.view(torch.uint8)])

    def unpacked(self, message: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The places and the values of `message`, which `packed` made of values of `dtype`."""
        # Copies: a view of a larger type must start at a multiple of its size.
        values = message[: self.sent * dtype.itemsize].clone().view(dtype)
        inside = message[self.sent * dtype.itemsize :].clone().view(self._place_type)
        return inside + self._starts(message.device), values

    @property
    def _place_type(self) -> torch.dtype:
        return torch.uint8 if self.size <= 2**8 else torch.int16

    def _starts(self, device: torch.device) -> Tensor:
        """The first place of the chunk of each sent entry, int64."""
        return torch.arange(self.sent, device=device) // self.top * self.size


def mean_of_sent(sent: Iterable[tuple[Tensor, Tensor]], like: Tensor, nodes: int | None = None) -> Tensor:
    """The mean of each entry over the nodes that sent it, 0 where no node did; a flat tensor such as `like`.

    sent: places and values of each node, in rank order. A node sends a place once. A zero that was sent counts.
    nodes: take the mean over this many; those that did not send an entry count as zero.
    """
    total, senders = torch.zeros_like(like), torch.zeros_like(like)
    for places, values in sent:
        total.index_add_(0, places, values)
        senders.index_add_(0, places, torch.ones_like(values))
    return total.div_(senders.clamp_(min=1) if nodes is None else nodes)
