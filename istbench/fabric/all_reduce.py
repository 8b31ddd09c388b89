"""An all-reduce by exchanges in turns, for nodes at a distance.

In gloo's ring all-reduce, segments wait for each other, so a tensor takes many round trips. Here each node averages
one part: it receives this part from every other node, and then sends the mean to all. The slices of a large tensor
overlap: while a node adds up one slice, the next ones are on their way. A small tensor goes whole to all nodes at
once, and so does every tensor of two nodes: this sends as many bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from istbench.fabric.pending import Pending, Transfers

_LEAST_MESSAGE = 2**17  # bytes to one node of one slice
_MOST_SLICES = 8
_MOST_MORE = 2**16  # bytes that a node sends more to save latencies; they take 5 ms at 100 Mbit/s


class Exchanging(Protocol):
    """The exchanges of a `Fabric`."""

    rank: int
    world_size: int

    def exchange_async(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str
    ) -> Transfers: ...

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Pending: ...

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Pending: ...


def all_reduce_mean_in_turns(fabric: Exchanging, tensor: Tensor, name: str = "all-reduce") -> None:
    """Replace `tensor` on every node by the mean over nodes. Every rank must call this in the same order.

    The nodes add up in rank order, so the mean has the same bits on all nodes and in all runs. A node needs memory
    for the terms of the others, and for its mean.

    Raises:
        FabricError: if a peer does not answer in time.
    """
    n = fabric.world_size
    if n == 1 or tensor.numel() == 0:
        return
    flat = tensor.contiguous().view(-1)
    more = flat.nbytes * (n - 1) * (n - 2) / n
    (_at_once if more <= _MOST_MORE else _by_parts)(fabric, flat, name)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def add_up(terms: Sequence[Tensor], out: Tensor) -> None:
    """Write the sum of `terms` to `out`, added in their order."""
    if len(terms) == 1:
        out.copy_(terms[0])
        return
    torch.add(terms[0], terms[1], out=out)
    for term in terms[2:]:
        out.add_(term)


def _at_once(fabric: Exchanging, flat: Tensor, name: str) -> None:
    """Send `flat` to all nodes at once: one latency in place of one for each turn."""
    under_way = []
    for piece in flat.split(_slice_size(flat, 1)):
        terms = [piece if rank == fabric.rank else torch.empty_like(piece) for rank in range(fabric.world_size)]
        others = {rank: term for rank, term in enumerate(terms) if rank != fabric.rank}
        under_way.append((terms, fabric.exchange_async(dict.fromkeys(others, piece), others, name)))
    for terms, transfers in under_way:
        transfers.wait()
        total = torch.empty_like(terms[0])
        add_up(terms, total)
        torch.div(total, fabric.world_size, out=terms[fabric.rank])


def _by_parts(fabric: Exchanging, flat: Tensor, name: str) -> None:
    """Average each slice by a reduce-scatter and an all-gather, under way beside those of other slices."""
    n = fabric.world_size
    pieces = list(flat.split(_slice_size(flat, n)))
    rest = pieces[-1]
    # Zeros make the last slice divisible.
    pieces[-1] = torch.nn.functional.pad(rest, (0, -rest.numel() % n))
    means = [piece.new_empty(piece.numel() // n) for piece in pieces]
    scattered = [
        fabric.reduce_scatter_mean_async(mean, piece, name) for mean, piece in zip(means, pieces, strict=True)
    ]
    gathered = []
    for reduced, mean, piece in zip(scattered, means, pieces, strict=True):
        reduced.wait()
        gathered.append(fabric.all_gather_async(piece, mean, name))
    for pending in gathered:
        pending.wait()
    rest.copy_(pieces[-1][: rest.numel()])


def _slice_size(flat: Tensor, parts: int) -> int:
    """The values of a slice of `flat`, a multiple of `parts`. A message carries one of `parts` parts of a slice."""
    slices = max(1, min(_MOST_SLICES, flat.nbytes // (parts * _LEAST_MESSAGE)))
    return -(-flat.numel() // (slices * parts)) * parts
