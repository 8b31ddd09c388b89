"""The exchange of IST without a server: plans the entries between each two nodes, gathers and writes them.

At the end of a round every entry moves directly from the node that trained it to the nodes that train it next. If
no node trains it next, it moves to its home node, and later back from there. Sender and receiver derive the same
list of blocks from the two partitions. So a message holds bare values in that order, and no index crosses the
network. The partitions are those of arXiv 1910.02120; the exchange without a server is this project's own.

If an entry has several owners (coverage p), they differ at the end of a round. One of them is its lead: the first
owner of its row's unit, or, if that node does not own the column's unit, the first owner of the column's unit. Two
exchanges follow each other:

1. `ReduceToLead`: the other owners send their values to the lead, which takes the mean: p - 1 values for each entry
   of a tensor with one cut dimension.
2. `Repartition`: the lead sends the mean to the next owners, p or p - 1 of them. A node that owned the entry before
   keeps its own optimizer state; a new owner also gets the lead's state.

So p = 1 is the move of Independent Subnet Training, without a reduction. An entry needs at least 2 (p - 1)
transfers, and one more if no owner stays.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from istbench.workloads.neuron_groups.layout import (
    Axis,
    CutTensor,
    Layout,
    product_shape,
    select,
    select_into,
    write,
)
from istbench.workloads.neuron_groups.partition import GroupPartition, Partition, common_owners, units_dealt

Holder = Literal["subnet", "home"]

Planes = Mapping[str, Sequence[Tensor]]
"""Tensors by name: the values and the optimizer state that travels with them, all of one shape."""

Span = tuple[int, int | None]
"""Planes of a tensor, from the first to the last (exclusive)."""

_ALL, _VALUES, _STATE = (0, None), (0, 1), (1, None)


@dataclass(frozen=True)
class Holdings:
    """The tensors on one node: its subnet, and its home shards of tensors cut along two axes.

    A home shard has the rows of the home node's units along the tensor's first axis, whole along the second.
    """

    subnet: Planes
    home: Planes


@dataclass(frozen=True)
class Block:
    """A product of indices, local to the holder, along the axes of one tensor; `planes` of the holder's planes."""

    tensor: CutTensor
    holder: Holder
    index: tuple[Tensor, ...]
    planes: Span = _ALL

    @cached_property
    def shape(self) -> torch.Size:
        return product_shape(self.tensor.shape, self.tensor.axes, self.index)


@dataclass(frozen=True, eq=False)
class Move:
    """Entries of `tensor` at the product of `units`, an index of units per axis, and who holds them."""

    tensor: CutTensor
    before: Holder
    after: Holder
    units: tuple[Tensor, ...]
    planes: Span = _ALL


@dataclass(frozen=True)
class _Class:
    """The entries of a tensor whose units have the first owners `firsts`, one for each axis: all have equal owners.

    Attributes:
        owners: the nodes that own the units of all axes; at least one.
    """

    firsts: tuple[int, ...]
    owners: tuple[int, ...]

    @property
    def lead(self) -> int:
        """The owner that takes the mean of the owners' values. If arcs of a ring overlap, one contains a start."""
        return next(first for first in self.firsts if first in self.owners)

    def units(self, tensor: CutTensor, partition: Partition) -> list[Tensor]:
        """[size] for each axis, whether a unit belongs to this class."""
        return [partition[axis.group].owner == first for axis, first in zip(tensor.axes, self.firsts, strict=True)]


def _firsts(node: int, nodes: int, coverage: int) -> list[int]:
    """The first owners of the units that `node` owns."""
    return [(node - place) % nodes for place in range(coverage)]


@cache
def _owned_by(node: int, nodes: int, coverage: int, axes: int) -> tuple[_Class, ...]:
    """The classes of entries that `node` owns, in tensors with that many axes."""
    firsts = _firsts(node, nodes, coverage)
    owners = {first: {(first + place) % nodes for place in range(coverage)} for first in firsts}
    return tuple(
        _Class(starts, tuple(sorted(set.intersection(*(owners[first] for first in starts)))))
        for starts in product(firsts, repeat=axes)
    )


def _classes(node: int, tensor: CutTensor, partition: Partition) -> tuple[_Class, ...]:
    parts = partition[tensor.axes[0].group]
    return _owned_by(node, len(parts.units), parts.coverage, len(tensor.axes))


class ReduceToLead:
    """The owners of each entry send their values to its lead. With a coverage of 1 there is nothing to send."""

    def __init__(self, layout: Layout, partition: Partition) -> None:
        self._layout, self._partition = layout, partition

    def outgoing(self, node: int, lead: int) -> list[Block]:
        """The blocks that `node` sends to `lead`, as places on `node`; in the order of `led`."""
        return [block for block, _ in self._blocks(node, lead)] if node != lead else []

    def led(self, node: int) -> list[tuple[Block, tuple[int, ...]]]:
        """The blocks that `node` leads, as places on `node`, with their owners."""
        return [(block, owners) for block, owners in self._blocks(node, node) if len(owners) > 1]

    def _blocks(self, node: int, lead: int) -> Iterator[tuple[Block, tuple[int, ...]]]:
        """The blocks that `node` owns and `lead` leads, in an order that does not depend on `node`."""
        for tensor in self._layout.cut:
            for each in _classes(lead, tensor, self._partition):
                units = [mask.nonzero().reshape(-1) for mask in each.units(tensor, self._partition)]
                if each.lead == lead and node in each.owners and all(len(mine) for mine in units):
                    place = held_block(tensor, "subnet", node, units, self._partition, {}, _VALUES)
                    yield place, each.owners


def take_means(
    holdings: Holdings, led: Sequence[tuple[Block, tuple[int, ...]]], arrived: Mapping[int, Tensor]
) -> None:
    """Replace the blocks that this node leads by the means over their owners.

    Owners add up in the order of their ranks, as in an assembled model: both means are the same, bit for bit.

    led: from `ReduceToLead.led`. arrived: by owner, the values of its `ReduceToLead.outgoing`.
    """
    taken = dict.fromkeys(arrived, 0)
    for block, owners in led:
        shape = block.shape
        (plane,) = _planes(holdings, block)
        total = plane.new_zeros(shape)
        for owner in owners:
            if owner in arrived:
                first = taken[owner]
                taken[owner] += shape.numel()
                total += arrived[owner][first : taken[owner]].view(shape)
            else:
                total += select(plane, block.tensor.axes, block.index)
        write(plane, block.tensor.axes, block.index, total / len(owners))


def mean_of_owners(
    full: Tensor, parts: Iterable[tuple[Sequence[Axis], Sequence[Tensor], Tensor]], dtype: torch.dtype
) -> Tensor:
    """`full` with the means of the `parts` where there are any, added up in their order in `dtype`.

    parts: of each owner, the axes and the product of indices where its values belong, and the values.
    """
    total, owners = (torch.zeros(full.shape, dtype=dtype, device=full.device) for _ in range(2))
    for axes, index, values in parts:
        write(total, axes, index, select(total, axes, index) + values)
        write(owners, axes, index, select(owners, axes, index) + 1)
    return torch.where(owners > 0, (total / owners).to(full.dtype), full)


def values_reduced(led: Sequence[tuple[Block, tuple[int, ...]]], owner: int) -> int:
    """The number of values that `owner` sends to the lead of `led`, another node."""
    return sum(block.shape.numel() for block, owners in led if owner in owners)


class Repartition:
    """The move from partition `old` to partition `new`, with entries in no subnet kept by partition `home`."""

    def __init__(self, layout: Layout, old: Partition, new: Partition, home: Partition) -> None:
        self._layout = layout
        self._old, self._new, self._home = old, new, home
        self._moving: dict[str, _MovingUnits] = {}

    def outgoing(self, node: int, peer: int) -> list[Block]:
        """The blocks that `node` sends to `peer`, as places on `node` before; in the order of `incoming`."""
        return [
            held_block(move.tensor, move.before, node, move.units, self._old, self._home, move.planes)
            for move in self._moves(node, peer)
        ]

    def incoming(self, node: int, peer: int) -> list[Block]:
        """The blocks that `node` receives from `peer`, as places on `node` after the move."""
        return [
            held_block(move.tensor, move.after, node, move.units, self._new, self._home, move.planes)
            for move in self._moves(peer, node)
        ]

    def _moves(self, source: int, target: int) -> Iterator[Move]:
        """The moves from `source` to `target`, in a fixed order."""
        for tensor in self._layout.cut:
            for before, after, units, planes in self._pieces(tensor, source, target):
                if all(mine.numel() for mine in units):
                    yield Move(tensor, before, after, units, planes)

    def _pieces(
        self, tensor: CutTensor, source: int, target: int
    ) -> Iterator[tuple[Holder, Holder, tuple[Tensor, ...], Span]]:
        """(holder at source, holder at target, units by axis, planes) of every block; some have no units."""
        units = [self._units(axis.group) for axis in tensor.axes]
        parts = self._old[tensor.axes[0].group]
        nodes = range(len(parts.units))
        # With 2 p > n, any two units have a common owner: no entry waits at home.
        homed = tensor.needs_home and 2 * parts.coverage <= len(nodes)
        for each in _classes(source, tensor, self._old):
            direct = tuple(group.moving(first, target) for group, first in zip(units, each.firsts, strict=True))
            if each.lead != source:
                if source == target:  # its own state goes to the new place; the value comes from the lead
                    yield "subnet", "subnet", direct, _STATE
                continue
            yield "subnet", "subnet", direct, _VALUES if target in each.owners and target != source else _ALL
            for after in nodes if homed else ():
                # Its owners trained it, but no node trains it next: its row and its column get different nodes.
                if (rows := units[0].at_home(each.firsts[0], after, target)).numel():
                    yield "subnet", "home", (rows, units[1].apart_after(each.firsts[1], after)), _ALL
        for before in nodes if homed else ():
            # The mirror image: no node trained it, `target` does next.
            if (rows := units[0].leaving_home(before, target, source)).numel():
                yield "home", "subnet", (rows, units[1].apart_before(before, target)), _ALL

    def _units(self, group: str) -> "_MovingUnits":
        if group not in self._moving:
            self._moving[group] = _MovingUnits(self._old[group], self._new[group], self._home.get(group))
        return self._moving[group]


class _MovingUnits:
    """The units of one group by their first owners before a move and after it, and by their home.

    Sorting finds the units of all pairs of nodes at once. A mask of all units for each pair takes far longer.
    """

    def __init__(self, old: GroupPartition, new: GroupPartition, home: GroupPartition | None) -> None:
        self._old, self._new, self._nodes = old, new, len(old.units)
        self._before = _by_owners(self._nodes, old.owner)
        self._moving = _by_owners(self._nodes, old.owner, new.owner)
        self._at_home = _by_owners(self._nodes, old.owner, new.owner, home.owner) if home else {}
        self._apart: dict[tuple[int, int, bool], Tensor] = {}
        self._none = old.owner[:0]

    def moving(self, before: int, target: int) -> Tensor:
        """Units with the first owner `before` before that `target` owns after."""
        return self._all(self._moving, [(before, after) for after in self._firsts(target)])

    def at_home(self, before: int, after: int, home: int) -> Tensor:
        """Units of `home` with these first owners."""
        return self._all(self._at_home, [(before, after, home)])

    def leaving_home(self, before: int, target: int, home: int) -> Tensor:
        """Units of `home` with the first owner `before` before that `target` owns after."""
        return self._all(self._at_home, [(before, after, home) for after in self._firsts(target)])

    def apart_after(self, before: int, first: int) -> Tensor:
        """Units with the first owner `before` before that share no owner after with units of `first`."""
        if (found := self._apart.get((before, first, True))) is None:
            units = self._before.get(before, self._none)
            found = self._apart[before, first, True] = units[_are_apart(first, self._new, units)]
        return found

    def apart_before(self, first: int, target: int) -> Tensor:
        """Units of `target` after that shared no owner before with units of `first`."""
        if (found := self._apart.get((target, first, False))) is None:
            units = self._new.units[target]
            found = self._apart[target, first, False] = units[_are_apart(first, self._old, units)]
        return found

    def _firsts(self, node: int) -> list[int]:
        return _firsts(node, self._nodes, self._new.coverage)

    def _all(self, units: Mapping[int, Tensor], owners: Sequence[tuple[int, ...]]) -> Tensor:
        found = [units[code] for each in owners if (code := _code(self._nodes, *each)) in units]
        return torch.cat(found) if len(found) > 1 else found[0] if found else self._none


def _by_owners(nodes: int, *owners: Tensor) -> dict[int, Tensor]:
    """Units by the `_code` of their `owners`, each [size]. The units of an entry increase."""
    code = _code(nodes, *owners)
    order = code.argsort(stable=True)
    codes, counts = code[order].unique_consecutive(return_counts=True)
    return dict(zip(codes.tolist(), order.split(counts.tolist()), strict=True))


def _code(nodes: int, *owners: Any) -> Any:
    return reduce(lambda code, owner: code * nodes + owner, owners)


def _are_apart(first: int, parts: GroupPartition, units: Tensor) -> Tensor:
    """Whether each of `units` has no owner in common with units whose first owner is `first`."""
    distance = (parts.owner[units] - first) % len(parts.units)
    return (distance >= parts.coverage) & (distance <= len(parts.units) - parts.coverage)


def held_block(
    tensor: CutTensor,
    holder: Holder,
    node: int,
    units: Sequence[Tensor],
    partition: Partition,
    home: Partition,
    planes: Span = _ALL,
) -> Block:
    """The entries of `tensor` at the product of `units` (an index of units per axis), at their place on `node`."""
    if holder == "subnet":
        parts = [partition[axis.group] for axis in tensor.axes]
        index = [
            axis.index(part.places(node, mine), part.units[node].numel())
            for axis, part, mine in zip(tensor.axes, parts, units, strict=True)
        ]
    else:  # a home shard is whole along the second axis
        first, second = tensor.axes
        shard = home[first.group]
        index = [
            first.index(shard.places(node, units[0]), shard.units[node].numel()),
            second.index(units[1], tensor.axis_units[1]),
        ]
    return Block(tensor, holder, tuple(index), planes)


def gather_blocks(holdings: Holdings, blocks: Sequence[Block], like: Tensor) -> Tensor:
    """The values of `blocks`, all planes of each, as one flat buffer of `like`'s dtype and device."""
    buffer = torch.empty(count_values(holdings, blocks), dtype=like.dtype, device=like.device)
    for block, plane, values in _in_buffer(holdings, blocks, buffer):
        select_into(values, plane, block.tensor.axes, block.index)
    return buffer


def write_blocks(holdings: Holdings, blocks: Sequence[Block], buffer: Tensor) -> None:
    """Write a buffer made by `gather_blocks` on the sending node into `holdings` at `blocks`."""
    for block, plane, values in _in_buffer(holdings, blocks, buffer):
        write(plane, block.tensor.axes, block.index, values)


def values_of_blocks(holdings: Holdings, blocks: Sequence[Block], buffer: Tensor) -> list[Tensor]:
    """The first plane of each of `blocks` in a buffer for `write_blocks`: views of their shapes."""
    found = _in_buffer(holdings, blocks, buffer)
    return [values for block, plane, values in found if plane is _planes(holdings, block)[0]]


def _in_buffer(
    holdings: Holdings, blocks: Sequence[Block], buffer: Tensor
) -> Iterator[tuple[Block, Tensor, Tensor]]:
    """Each plane of `blocks`: the block, the holder's tensor, and its values in `buffer`, a view."""
    offset = 0
    for block in blocks:
        shape = block.shape
        for plane in _planes(holdings, block):
            yield block, plane, buffer[offset : offset + shape.numel()].view(shape)
            offset += shape.numel()


def count_values(holdings: Holdings, blocks: Sequence[Block]) -> int:
    """The number of values of `blocks` over all their planes."""
    return sum(block.shape.numel() * len(_planes(holdings, block)) for block in blocks)


def _planes(holdings: Holdings, block: Block) -> Sequence[Tensor]:
    return (holdings.subnet if block.holder == "subnet" else holdings.home)[block.tensor.name][slice(*block.planes)]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The mean number of values that one node moves, over rounds or waves.

    Attributes:
        gathered: values that it takes out of its tensors, for others and for itself.
        sent: values that it sends to others; equally many arrive.
        reduced: values that it sends to the leads of its entries before; equally many arrive.
        returned: values among `sent` that go back from the lead to other owners, because no unit changed owners.
    """

    gathered: float
    sent: float
    reduced: float = 0.0
    returned: float = 0.0


def expected_moves(
    tensor: CutTensor, nodes: int, coverage: int = 1, moving: float = 1.0, *, state: bool = False
) -> Moved:
    """The mean number of values of `tensor` that one of `nodes` nodes moves in a repartition.

    state: count a tensor of the optimizer's state, of which new owners alone get a copy.

    A random permutation of m of N units acts on each unit like this: with q = (m - 1) / (N - 1) as probability, its
    first owner becomes any of the n nodes, each with probability 1/n; or else it stays. So an owner of a unit stays
    one with probability k = 1 - q + q p/n.

    A tensor cut along one axis: each entry has p owners before and after. The lead, one of them, stays with k.

    A tensor cut along two axes: the entries whose first owners are d apart have c(d) common owners, and 1/n of all
    entries have each d. With probability s = (1 - q1) (1 - q2) both units stay. Otherwise the new distance is
    uniform: the mean number of owners is then p^2/n, and there is none with the probability of p <= d <= n - p. An
    entry without an owner is at home, each node with probability 1/n.
    """
    n, p = nodes, coverage
    if n == 1:
        return Moved(gathered=0, sent=0)
    again = [(units_dealt(size, moving) - 1) / max(1, size - 1) if moving else 0.0 for size in tensor.axis_units]
    keeps = math.prod(1 - each + each * p / n for each in again)
    if not tensor.needs_home:
        values = tensor.shape.numel() / n
        sent = p * (1 - keeps) if state else p - keeps
        reduced = 0 if state else values * (p - 1)
        return Moved(gathered=values * p, sent=values * sent, reduced=reduced, returned=reduced * (1 - again[0]))
    stay = math.prod(1 - each for each in again)
    values = tensor.shape.numel() / n**2
    common = [common_owners(distance, n, p) for distance in range(n)]
    none = (1 - stay) * common.count(0) / n
    gathered = sent = reduced = 0.0
    for owners in common:
        following = stay * owners + (1 - stay) * p * p / n
        if owners:
            gathered += following + none
            sent += following - (owners if state else 1) * keeps + none * (n - 1) / n
            reduced += 0 if state else owners - 1
        else:
            gathered += following
            sent += following * (n - 1) / n
    reduced *= values
    return Moved(gathered=values * gathered, sent=values * sent, reduced=reduced, returned=reduced * stay)


@cache
def owned_behind(axes: int, nodes: int, coverage: int) -> tuple[float, ...]:
    """For each distance from 1 on, the share of the other owners of a node's entries that are so far behind it.

    The entries are those that the node leads, of a tensor with that many `axes`. The ring of `nodes` has as many
    distances as there are other nodes; the shares add up to 1, or to 0 with one owner.
    """
    led = (each.owners for each in _owned_by(0, nodes, min(coverage, nodes), axes) if each.lead == 0)
    owned = Counter(distance for owners in led for distance in owners if distance)
    return tuple(owned[distance] / max(1, owned.total()) for distance in range(1, nodes))
