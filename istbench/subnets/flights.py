"""A wave of streaming IST: which entries fly from whom to whom, and which places are empty meanwhile.

Of a tensor with one axis a unit's entries fly with it. Of a tensor between two groups one end moves: what the unit
leaves behind is in no subnet then, and flies home; what it meets comes from home. Both ends derive the same list,
as they do for a repartition, so a message is bare values.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from istbench.subnets.exchange import Block, Holder, held_block
from istbench.subnets.groups import expand_units
from istbench.subnets.layout import CutTensor, Layout
from istbench.subnets.partition import Partition
from istbench.subnets.streaming import Wave


@dataclass(frozen=True, eq=False)
class Move:
    """Entries of `tensor` at the product of `units`, an index of units per axis, and who holds them."""

    tensor: CutTensor
    before: Holder
    after: Holder
    units: tuple[Tensor, ...]

    @property
    def index(self) -> list[Tensor]:
        """Per axis, the indices into the full tensor."""
        return [expand_units(units, axis.block) for units, axis in zip(self.units, self.tensor.axes, strict=True)]


class Flights:
    """What flies in `wave`; entries in no subnet are kept by partition `home`."""

    def __init__(self, layout: Layout, wave: Wave, home: Partition) -> None:
        self.wave = wave
        self._home = home
        self._tensors = [cut for cut in layout.cut if any(axis.group in wave.moving for axis in cut.axes)]
        self._moves: dict[tuple[int, int], list[Move]] = {}
        self._routes = {group: self._by_route(group) for group in wave.moving}

    def outgoing(self, node: int, peer: int) -> list[Block]:
        """What `node` sends to `peer`, as blocks of what `node` holds before; in the order `incoming` expects."""
        moves = self.moves(node, peer)
        return self._blocks(moves, [move.before for move in moves], self.wave.old)

    def incoming(self, node: int, peer: int) -> list[Block]:
        """What `node` receives from `peer`, as blocks of what `node` holds once the wave has landed."""
        moves = self.moves(peer, node)
        return self._blocks(moves, [move.after for move in moves], self.wave.new)

    def _blocks(self, moves: list[Move], holders: list[Holder], partition: Partition) -> list[Block]:
        blocks: list[Block] = []
        known: dict[
            tuple[str, int], tuple[Tensor, ...]
        ] = {}  # with one axis, the same units fly in every tensor of a group
        for move, holder in zip(moves, holders, strict=True):
            alike = move.tensor.axes[0].group, move.tensor.axes[0].block
            if move.tensor.needs_home or alike not in known:
                blocks.append(held_block(move.tensor, holder, move.units, partition, self._home))
            else:
                blocks.append(Block(move.tensor, holder, known[alike]))
            if not move.tensor.needs_home:
                known[alike] = blocks[-1].index
        return blocks

    def empty(self, node: int) -> list[tuple[str, int, Tensor]]:
        """The places in `node`'s subnet that units have left and others will land in: tensor, dimension, index."""
        left = {}
        for group, units in self.wave.moving.items():
            parts = self.wave.old[group]
            left[group] = parts.position[units[parts.owner[units] == node]]
        return [
            (cut.name, axis.dim, expand_units(left[axis.group], axis.block))
            for cut in self._tensors
            for axis in cut.axes
            if axis.group in left
        ]

    def moves(self, source: int, target: int) -> list[Move]:
        """All that flies from `source` to `target`, in a fixed order; on one node, to and from its home shards."""
        if (source, target) not in self._moves:
            self._moves[source, target] = [
                move
                for cut in self._tensors
                for move in (self._of_two if cut.needs_home else self._of_one)(cut, source, target)
                if all(len(units) for units in move.units)
            ]
        return self._moves[source, target]

    def _of_one(self, cut: CutTensor, source: int, target: int) -> Iterator[Move]:
        yield Move(cut, "subnet", "subnet", (self._between(cut.axes[0].group, source, target),))

    def _of_two(self, cut: CutTensor, source: int, target: int) -> Iterator[Move]:
        rows, columns = (axis.group for axis in cut.axes)
        if rows in self.wave.moving:
            leaving, landing = self._between(rows, source, None), self._between(rows, None, target)
            left, met = self.wave.old[columns].units[source], self.wave.old[columns].units[target]
            yield Move(cut, "subnet", "home", (self._kept(rows, leaving, target), left))
            yield Move(cut, "home", "subnet", (self._kept(rows, landing, source), met))
        else:
            leaving, landing = self._between(columns, source, None), self._between(columns, None, target)
            stay, meet = self.wave.old[rows].units[source], self.wave.old[rows].units[target]
            yield Move(cut, "subnet", "home", (self._kept(rows, stay, target), leaving))
            yield Move(cut, "home", "subnet", (self._kept(rows, meet, source), landing))

    def _between(self, group: str, source: int | None, target: int | None) -> Tensor:
        """The moving units of `group` from node `source` to node `target`; None, of one, is any."""
        routes = self._routes[group]
        if source is None:
            assert target is not None
            return torch.cat([row[target] for row in routes])
        return torch.cat(routes[source]) if target is None else routes[source][target]

    def _by_route(self, group: str) -> list[list[Tensor]]:
        """The moving units of `group`, by the node that they leave and the node that they land on."""
        units, nodes = self.wave.moving[group].numpy(), len(self.wave.old[group].units)
        owner, target = (parts[group].owner.numpy()[units] for parts in (self.wave.old, self.wave.new))
        route = owner * nodes + target
        ends = np.bincount(route, minlength=nodes**2).cumsum().tolist()
        pieces = torch.from_numpy(units[route.argsort(kind="stable")]).tensor_split(ends[:-1])
        return [list(pieces[source * nodes : (source + 1) * nodes]) for source in range(nodes)]

    def _kept(self, group: str, units: Tensor, home: int) -> Tensor:
        """Those of `units` whose home is `home`."""
        return units[self._home[group].owner[units] == home]
