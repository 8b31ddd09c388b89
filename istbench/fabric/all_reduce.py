"""An all-reduce by exchanges in turns, for nodes at a distance.

In gloo's ring all-reduce, segments wait for each other, so a tensor takes many round trips. Here each node averages
one part: it receives this part from every other node, and then sends the mean to all. The slices of a large tensor
overlap: while a node adds up one slice, the next ones are on their way. A small tensor goes whole to all nodes at
once, and so does every tensor of two nodes: this sends as many bytes.

Several nodes of a host share its link. If each of them exchanged with all nodes of other hosts, the link would
carry as many times the bytes. So the nodes of a host first add up its values, a part each. Then each averages its
part with the nodes of the same place on the other hosts. Last, they exchange the means inside the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

import torch
from torch import Tensor

from istbench.cluster.in_turns import goes_whole, slice_values


class Waiting(Protocol):
    """Something under way."""

    def wait(self) -> object: ...


class Exchanging(Protocol):
    """The exchanges of a `Fabric`, or of a `Group` of its nodes."""

    rank: int
    world_size: int
    host_nodes: int

    def exchange_async(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str) -> Waiting: ...

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Waiting: ...

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Waiting: ...


def mean_in_turns(fabric: Exchanging, tensor: Tensor, name: str) -> Iterator[None]:
    """Replace `tensor` on every node by the mean over nodes, in steps: each starts exchanges that the next awaits.

    Every rank must take them in the same order. The nodes add up in rank order, on hosts of several nodes first
    inside each host. So the mean has the same bits on all nodes and in all runs. A node needs memory for the terms
    of the others, and for its mean.

    Raises:
        FabricError: if a peer does not answer in time.
    """
    if fabric.world_size == 1 or tensor.numel() == 0:
        return
    flat = tensor.contiguous().view(-1)
    by_size = _by_hosts if fabric.host_nodes > 1 else _by_parts
    yield from (_at_once if goes_whole(flat.nbytes, fabric.world_size) else by_size)(fabric, flat, name)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def finish(*means: Iterator[None]) -> None:
    """Take the steps of `means` in turn, until all are complete."""
    for _ in zip_longest(*means):
        pass


def add_up(terms: Sequence[Tensor], out: Tensor) -> None:
    """Write the sum of `terms` to `out`, added in their order."""
    if len(terms) == 1:
        out.copy_(terms[0])
        return
    torch.add(terms[0], terms[1], out=out)
    for term in terms[2:]:
        out.add_(term)


def gathering(parts: Tensor, mine: Tensor, place: int, nodes: int) -> list[Tensor]:
    """The equal pieces of flat `parts`, one for each of `nodes`. The one at `place`, of this node, gets `mine`."""
    pieces = list(parts.view(nodes, mine.numel()))
    if pieces[place].data_ptr() != mine.data_ptr():
        pieces[place].copy_(mine)
    return pieces


def averaging(
    mine: Tensor, parts: Tensor, place: int, nodes: int
) -> tuple[list[Tensor], list[Tensor], Callable[[], object]]:
    """The pieces of flat `parts` that go to each of `nodes`, and buffers for those that come to the one at `place`.

    Call the function when these have come: it writes their mean to `mine`.
    """
    leaving = list(parts.view(nodes, mine.numel()))
    arriving = [mine.new_empty(mine.shape) for _ in range(nodes - 1)]
    arriving.insert(place, leaving[place])

    def average() -> None:
        add_up(arriving, mine)
        mine.div_(nodes)

    return leaving, arriving, average


def _at_once(fabric: Exchanging, flat: Tensor, name: str) -> Iterator[None]:
    """Send `flat` to all nodes at once: one latency in place of one for each turn."""
    under_way = []
    for piece in flat.split(slice_values(flat.numel(), flat.itemsize, 1)):
        terms = [piece if rank == fabric.rank else torch.empty_like(piece) for rank in range(fabric.world_size)]
        others = {rank: term for rank, term in enumerate(terms) if rank != fabric.rank}
        under_way.append((terms, fabric.exchange_async(dict.fromkeys(others, piece), others, name)))
    yield
    for terms, transfers in under_way:
        transfers.wait()
        total = torch.empty_like(terms[0])
        add_up(terms, total)
        torch.div(total, fabric.world_size, out=terms[fabric.rank])


def _by_parts(fabric: Exchanging, flat: Tensor, name: str) -> Iterator[None]:
    """Average each slice by a reduce-scatter and an all-gather, under way beside those of other slices."""
    n = fabric.world_size
    pieces, rest = _slices(flat, n)
    means = [piece.new_empty(piece.numel() // n) for piece in pieces]
    scattered = [
        fabric.reduce_scatter_mean_async(mean, piece, name) for mean, piece in zip(means, pieces, strict=True)
    ]
    yield
    gathered = []
    for reduced, mean, piece in zip(scattered, means, pieces, strict=True):
        reduced.wait()
        gathered.append(fabric.all_gather_async(piece, mean, name))
    yield
    for pending in gathered:
        pending.wait()
    rest.copy_(pieces[-1][: rest.numel()])


def _by_hosts(fabric: Exchanging, flat: Tensor, name: str) -> Iterator[None]:
    """Average the slices on hosts of several nodes: while one crosses their links, others are added up inside."""
    pieces, rest = _slices(flat, fabric.world_size)
    for _ in zip_longest(*(_steps_on_hosts(fabric, piece, name) for piece in pieces)):
        yield
    rest.copy_(pieces[-1][: rest.numel()])


def _steps_on_hosts(fabric: Exchanging, piece: Tensor, name: str) -> Iterator[None]:
    """Average one slice: yields when its next exchange is under way, and then waits for it."""
    size, place = fabric.host_nodes, fabric.rank % fabric.host_nodes
    first = fabric.rank - place
    here, there = range(first, first + size), range(place, fabric.world_size, size)
    parts = list(piece.view(size, -1))
    mine = parts[place]
    shares = list(mine.view(len(there), -1))
    own = shares[fabric.rank // size]
    yield from _add(fabric, here, parts, mine, name)
    if goes_whole(mine.nbytes, len(there)):
        yield from _add(fabric, there, [mine] * len(there), mine, name)
        mine.div_(fabric.world_size)
    else:
        yield from _add(fabric, there, shares, own, name)
        own.div_(fabric.world_size)
        yield from _hand_out(fabric, there, own, shares, name)
    yield from _hand_out(fabric, here, mine, parts, name)


def _add(
    fabric: Exchanging, group: Sequence[int], parts: Sequence[Tensor], out: Tensor, name: str
) -> Iterator[None]:
    """Send each rank of `group` its one of `parts`, and write the sum of those for this rank to `out`."""
    sends = {rank: part for rank, part in zip(group, parts, strict=True) if rank != fabric.rank}
    receives = {rank: torch.empty_like(out) for rank in sends}
    terms = [receives.get(rank, part) for rank, part in zip(group, parts, strict=True)]
    transfers = fabric.exchange_async(sends, receives, name)
    yield
    transfers.wait()
    total = torch.empty_like(out)
    add_up(terms, total)
    out.copy_(total)


def _hand_out(
    fabric: Exchanging, group: Sequence[int], own: Tensor, parts: Sequence[Tensor], name: str
) -> Iterator[None]:
    """Send `own` to the others of `group`, and receive the other `parts` from them."""
    receives = {rank: part for rank, part in zip(group, parts, strict=True) if rank != fabric.rank}
    transfers = fabric.exchange_async(dict.fromkeys(receives, own), receives, name)
    yield
    transfers.wait()


def _slices(flat: Tensor, parts: int) -> tuple[list[Tensor], Tensor]:
    """The slices of `flat`, each divisible by `parts` (zeros fill the last one), and the last one as it is."""
    pieces = list(flat.split(slice_values(flat.numel(), flat.itemsize, parts)))
    rest = pieces[-1]
    pieces[-1] = torch.nn.functional.pad(rest, (0, -rest.numel() % parts))
    return pieces, rest
