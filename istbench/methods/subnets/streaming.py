"""The waves of streaming IST, this project's own extension: moving units, and the entries that travel.

A round has a number of waves. A wave takes the next units of each group, in a random order that is drawn
again in every round. It permutes their owners among themselves, so every node keeps its count. A unit that changes
its node leaves at once and belongs to no node until it lands. It lands in the place of a unit that left its new
node in the same wave.

Groups that share a tensor take turns, wave by wave, so that only one end of a weight moves at a time. Pure: every
node derives a wave from (seed, round, wave) and from where the units were before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from istbench.base.seeds import derived_seed
from istbench.methods.subnets.exchange import Block, Holder, Move, Moved, held_block
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.layout import Axis, CutTensor, Layout
from istbench.workloads.neuron_groups.partition import GroupPartition, Partition, units_dealt

_UNITS_A_NODE = 2
"""Mean units of a node in a wave, at least: a permutation of very few units leaves too many on their node."""


@dataclass(frozen=True)
class Wave:
    """Units that move together.

    Attributes:
        old, new: where every unit is before they leave, and once they have landed.
        moving: by group, the units that change their node; groups without any are left out.
    """

    old: Partition
    new: Partition
    moving: Mapping[str, Tensor]


@dataclass(frozen=True)
class Timetable:
    """The waves of a round.

    Attributes:
        waves: of a round, at least as many as there are turns.
        turns: of each group, from 0; see `turns_of`.
        moving: share of the units of a group that the waves of a round take.
    """

    groups: tuple[NeuronGroup, ...]
    world_size: int
    seed: int
    waves: int
    turns: Mapping[str, int]
    moving: float = 1.0
    _orders: dict[str, tuple[int, Tensor]] = field(default_factory=dict, repr=False)  # with the round they are of

    def wave(self, partition: Partition, round_index: int, number: int) -> Wave:
        """Wave `number` of a round, where units are by `partition` before."""
        new, moving = dict(partition), {}
        for group in self.groups:
            units = self._taken(group, round_index, number)
            if not len(units):
                continue
            key = derived_seed(self.seed, "wave", round_index, number, group.name)
            permutation = torch.randperm(len(units), generator=torch.Generator().manual_seed(key))
            movers, parts = _permuted(partition[group.name], units, permutation)
            if len(movers):
                moving[group.name], new[group.name] = movers, parts
        return Wave(partition, new, moving)

    def pieces(self, group: NeuronGroup) -> int:
        """The number of pieces of `group` in a round; each wave takes one or none."""
        return max(
            1, min(len(self._waves_of(group)), self._taken_a_round(group) // (_UNITS_A_NODE * self.world_size))
        )

    def takes(self, group: NeuronGroup, number: int) -> bool:
        """Whether wave `number` of a round takes a piece of `group`."""
        first, last = self._piece(group, number)
        return first < last

    def moving_share(self, group: NeuronGroup) -> float:
        """The mean share of the units of `group` that changes its node in a round.

        Each of the m units of a piece gets the owner of a random one of them. This may be its own node.
        """
        taken, n = self._taken_a_round(group), self.world_size
        piece = max(1.0, taken / self.pieces(group))
        return taken / group.size * (1 - 1 / piece) * group.size * (1 - 1 / n) / max(1, group.size - 1)

    def _taken_a_round(self, group: NeuronGroup) -> int:
        return units_dealt(group.size, self.moving)

    def _taken(self, group: NeuronGroup, round_index: int, number: int) -> Tensor:
        taken = self._taken_a_round(group)
        first, last = (taken * piece // self.pieces(group) for piece in self._piece(group, number))
        return self._order(group, round_index)[first:last] if first < last else torch.empty(0, dtype=torch.int64)

    def _piece(self, group: NeuronGroup, number: int) -> tuple[int, int]:
        """The pieces of wave `number`, from the first number to the second (exclusive): one or none."""
        waves, pieces = self._waves_of(group), self.pieces(group)
        if number not in waves:
            return 0, 0
        # Groups of few pieces do not all move at once.
        turn, shift = waves.index(number), self.groups.index(group) * len(waves) // len(self.groups)
        return (turn * pieces + shift) // len(waves), ((turn + 1) * pieces + shift) // len(waves)

    def _waves_of(self, group: NeuronGroup) -> range:
        return range(self.turns[group.name], self.waves, 1 + max(self.turns.values()))

    def _order(self, group: NeuronGroup, round_index: int) -> Tensor:
        drawn = self._orders.get(group.name)
        if drawn is None or drawn[0] != round_index:
            key = derived_seed(self.seed, "order", round_index, group.name)
            order = torch.randperm(group.size, generator=torch.Generator().manual_seed(key))
            drawn = self._orders[group.name] = (round_index, order)
        return drawn[1]


def turns_of(layout: Layout) -> dict[str, int]:
    """The turn of each group, from 0: as few turns as possible, different ones for groups that share a tensor.

    Raises:
        ValueError: if a tensor is between the units of one group.
    """
    turns: dict[str, int] = {}
    shared = [{axis.group for axis in cut.axes} for cut in layout.cut if cut.needs_home]
    for cut in layout.cut:
        if cut.needs_home and cut.axes[0].group == cut.axes[1].group:
            raise ValueError(f"{cut.name} is between units of one group, {cut.axes[0].group!r}")
    for group in layout.groups:
        neighbours = {name for names in shared if group.name in names for name in names}
        taken = {turns[name] for name in neighbours if name in turns}
        turns[group.name] = next(turn for turn in count() if turn not in taken)
    return turns


def _permuted(parts: GroupPartition, units: Tensor, permutation: Tensor) -> tuple[Tensor, GroupPartition]:
    """Give `units` the owners of `units[permutation]`; returns the changed units, and the partition.

    NumPy needs a tenth of the time of torch for so few numbers.
    """
    taken, old_owner, old_position = units.numpy(), parts.owner.numpy(), parts.position[0].numpy()
    owners = old_owner[taken]
    wanted = owners[permutation.numpy()]
    changed = wanted != owners
    movers, before, after = taken[changed], owners[changed], wanted[changed]
    if not len(movers):
        return units[:0], parts
    # On every node as many units leave as arrive.
    left, landing = movers[before.argsort(kind="stable")], movers[after.argsort(kind="stable")]
    owner, position, arrangement = old_owner.copy(), old_position.copy(), torch.cat(parts.units)
    owner[landing], position[landing] = old_owner[left], old_position[left]
    sizes = [len(mine) for mine in parts.units]
    starts = np.cumsum([0, *sizes[:-1]])
    arrangement.numpy()[starts[owner[landing]] + position[landing]] = landing
    new = GroupPartition(arrangement.split(sizes), torch.from_numpy(owner), torch.from_numpy(position)[None])
    return torch.from_numpy(movers), new


class Flights:
    """The entries in flight in `wave`; partition `home` keeps the entries that are in no subnet.

    If a tensor has one axis, the entries of a unit travel with it. If a tensor is between two groups, one end
    moves. The entries that the unit leaves behind are in no subnet then, and travel home; the entries that it
    meets come from home. Sender and receiver derive the same list, as in `Repartition`, so a message holds bare
    values.
    """

    def __init__(self, layout: Layout, wave: Wave, home: Partition) -> None:
        self.wave = wave
        self._home = home
        self._tensors = [cut for cut in layout.cut if any(axis.group in wave.moving for axis in cut.axes)]
        self._moves: dict[tuple[int, int], list[Move]] = {}
        self._routes = {group: self._by_route(group) for group in wave.moving}

    def outgoing(self, node: int, peer: int) -> list[Block]:
        """The blocks that `node` sends to `peer`, as places on `node` before; in the order of `incoming`."""
        moves = self.moves(node, peer)
        return self._blocks(node, moves, [move.before for move in moves], self.wave.old)

    def incoming(self, node: int, peer: int) -> list[Block]:
        """The blocks that `node` receives from `peer`, as places on `node` after the wave has landed."""
        moves = self.moves(peer, node)
        return self._blocks(node, moves, [move.after for move in moves], self.wave.new)

    def _blocks(self, node: int, moves: list[Move], holders: list[Holder], partition: Partition) -> list[Block]:
        blocks: list[Block] = []
        known: dict[Axis, tuple[Tensor, ...]] = {}  # with one axis, the same units fly in every tensor of a group
        for move, holder in zip(moves, holders, strict=True):
            alike = replace(move.tensor.axes[0], dim=0)
            if move.tensor.needs_home or alike not in known:
                blocks.append(held_block(move.tensor, holder, node, move.units, partition, self._home))
            else:
                blocks.append(Block(move.tensor, holder, known[alike]))
            if not move.tensor.needs_home:
                known[alike] = blocks[-1].index
        return blocks

    def empty(self, node: int) -> list[tuple[str, int, Tensor]]:
        """The places in the subnet of `node` that units left and others land in: tensor, dimension, index."""
        left = {}
        for group, units in self.wave.moving.items():
            parts = self.wave.old[group]
            left[group] = parts.places(node, units[parts.owner[units] == node])
        return [
            (cut.name, axis.dim, axis.index(left[axis.group], len(self.wave.old[axis.group].units[node])))
            for cut in self._tensors
            for axis in cut.axes
            if axis.group in left
        ]

    def moves(self, source: int, target: int) -> list[Move]:
        """The moves from `source` to `target`, in a fixed order; on one node, to and from its home shards."""
        if (source, target) not in self._moves:
            self._moves[source, target] = [
                move
                for cut in self._tensors
                for move in (self._of_two if cut.needs_home else self._of_one)(cut, source, target)
                if all(len(units) for units in move.units)
            ]
        return self._moves[source, target]

    def _of_one(self, cut: CutTensor, source: int, target: int) -> Iterator[Move]:
        yield Move(cut, "subnet", "subnet", (self._routes[cut.axes[0].group][source][target],))

    def _of_two(self, cut: CutTensor, source: int, target: int) -> Iterator[Move]:
        rows, columns = (axis.group for axis in cut.axes)
        left, met = self._leaving(rows, source), self._landing(rows, target)
        yield Move(cut, "subnet", "home", (self._kept(rows, left, target), self._leaving(columns, source)))
        yield Move(cut, "home", "subnet", (self._kept(rows, met, source), self._landing(columns, target)))

    def _leaving(self, group: str, node: int) -> Tensor:
        """The moving units of `group` that leave `node`; all of its units if the group does not move."""
        return torch.cat(self._routes[group][node]) if group in self._routes else self.wave.old[group].units[node]

    def _landing(self, group: str, node: int) -> Tensor:
        """The moving units of `group` that land on `node`; all of its units if the group does not move."""
        if group not in self._routes:
            return self.wave.old[group].units[node]
        return torch.cat([row[node] for row in self._routes[group]])

    def _by_route(self, group: str) -> list[list[Tensor]]:
        """The moving units of `group`, by the node that they leave and the node that they land on."""
        units, nodes = self.wave.moving[group].numpy(), len(self.wave.old[group].units)
        owner, target = (parts[group].owner.numpy()[units] for parts in (self.wave.old, self.wave.new))
        route = owner * nodes + target
        ends = np.bincount(route, minlength=nodes**2).cumsum().tolist()
        pieces = torch.from_numpy(units[route.argsort(kind="stable")]).tensor_split(ends[:-1])
        return [list(pieces[source * nodes : (source + 1) * nodes]) for source in range(nodes)]

    def _kept(self, group: str, units: Tensor, home: int) -> Tensor:
        """The units among `units` with home `home`."""
        return units[self._home[group].owner[units] == home]


def expected_flights(layout: Layout, timetable: Timetable, number: int, weights: Mapping[str, int]) -> Moved:
    """The mean number of values that a node moves in wave `number`; a value of a tensor counts `weights` times.

    A moving unit takes along its entries of tensors that are cut along one axis. For a tensor cut along two, it
    sends 1/n of its entries home and gets another 1/n from home. 1/n of all homes are on the same node.
    """
    n = timetable.world_size
    gathered = sent = 0.0
    groups = {group.name: group for group in layout.groups if timetable.takes(group, number)}
    for cut in layout.cut:
        for axis in cut.axes:
            if axis.group not in groups:
                continue
            group = groups[axis.group]
            moving = timetable.moving_share(group) / timetable.pieces(group)
            values = weights[cut.name] * cut.shape.numel() * moving / n
            gathered += values if not cut.needs_home else 2 * values / n
            sent += values if not cut.needs_home else 2 * values / n * (n - 1) / n
    return Moved(gathered=gathered, sent=sent)
