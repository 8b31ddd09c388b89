"""The hidden units that each node trains, round by round. Pure: every node derives them from (seed, round).

The n nodes form a ring. With a coverage of p, a unit has p owners: its first owner k and the nodes k+1, ..., k+p-1
(modulo n). A coverage of 1 is Independent Subnet Training (arXiv 1910.02120, section 3): its parts are disjoint. A
coverage of n gives every unit to every node.

Two units with first owners a and b have common owners as a function of the distance d = b - a (modulo n) alone:
p - d of them after b, and p - (n - d) after a, where these are positive. They have none if p <= d <= n - p.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from istbench.base.options.shares import in_proportion
from istbench.base.seeds import derived_seed
from istbench.workloads.neuron_groups.groups import NeuronGroup


@dataclass(frozen=True)
class GroupPartition:
    """The units of one group on n nodes, p nodes for each unit.

    units: per node, its units by their index in its part (int64); in increasing order, except in streaming IST.
    owner: [size], the first owner of every unit.
    position: [p, size], the index of every unit within the part of its first owner, of the next owner, and so on.
    """

    units: tuple[Tensor, ...]
    owner: Tensor
    position: Tensor

    @property
    def coverage(self) -> int:
        """The number of owners of a unit."""
        return self.position.shape[0]

    def places(self, node: int, units: Tensor) -> Tensor:
        """The index of each of `units`, all of which `node` owns, within its part."""
        if self.coverage == 1:
            return self.position[0][units]
        return self.position[(node - self.owner[units]) % len(self.units), units]


Partition = dict[str, GroupPartition]
"""`GroupPartition` by group name."""


def units_on(node: int, partition: Partition) -> dict[str, int]:
    """The number of units of each group on `node`."""
    return {name: len(parts.units[node]) for name, parts in partition.items()}


def part_units(
    groups: Sequence[NeuronGroup], world_size: int, *, coverage: int = 1, shares: Sequence[float] = ()
) -> list[dict[str, int]]:
    """`units_on` each node, of any partition with these arguments.

    Raises:
        ValueError: if a group has too few units for every node to own one.
    """
    _require_units(groups, world_size, coverage)
    sizes = {group.name: part_sizes(group.size * coverage, world_size, shares) for group in groups}
    return [{name: own[node] for name, own in sizes.items()} for node in range(world_size)]


def _require_units(groups: Sequence[NeuronGroup], world_size: int, coverage: int) -> None:
    for group in groups:
        if group.size * coverage < world_size:
            raise ValueError(f"neuron group {group.name!r} has {group.size} units for {world_size} nodes")


def part_sizes(size: int, world_size: int, shares: Sequence[float] = ()) -> list[int]:
    """Sizes of n parts, in proportion to `shares` and at least 1; by default they differ by at most one.

    Node k's size is the same in every round.
    """
    if shares:
        return list(in_proportion(size, shares, least=1))
    return [size // world_size + (node < size % world_size) for node in range(world_size)]


def common_owners(distance: int, world_size: int, coverage: int) -> int:
    """The number of nodes that own both of two units whose first owners are `distance` apart on the ring."""
    distance %= world_size
    behind = coverage - (world_size - distance) if distance else 0
    return max(0, coverage - distance) + max(0, behind)


def partition_units(
    groups: Sequence[NeuronGroup],
    world_size: int,
    *,
    seed: int,
    round_index: int,
    coverage: int = 1,
    shares: Sequence[float] = (),
) -> Partition:
    """A seeded random partition of every group's units: `coverage` owners for each unit.

    Groups are permuted independently. Without `shares`, sizes of the parts differ by at most one, and node 0 has a
    largest one. Units within a part are sorted, so that one node's part is all units in their own order.

    shares: relative sizes of the parts, by node, with a coverage of 1.

    Raises:
        ValueError: if a group has too few units for every node to own one.
    """
    partition = {}
    _require_units(groups, world_size, coverage)
    for group in groups:
        key = derived_seed(seed, "partition", round_index, group.name)
        permutation = torch.randperm(group.size, generator=torch.Generator().manual_seed(key))
        owner = torch.empty(group.size, dtype=torch.int64)
        owner[permutation] = _first_owners(group.size, world_size, coverage, shares)
        partition[group.name] = _of_owners(owner, world_size, coverage)
    return partition


def _first_owners(size: int, world_size: int, coverage: int, shares: Sequence[float]) -> Tensor:
    """First owners of `size` units in a row, for parts in proportion to `shares`, or of equal sizes up to one.

    Every node is the first owner of floor(size / n) units, which gives all nodes equally many. The r units that are
    left are dealt like cards: the owners of the first are nodes 0 to p-1, those of the next one follow on the ring.
    """
    sizes = torch.tensor(part_sizes(size, world_size, shares))
    owner = torch.arange(world_size).repeat_interleave(sizes)
    if shares:
        return owner
    left = size % world_size
    owner[sizes.cumsum(0)[:left] - 1] = torch.arange(left) * coverage % world_size
    return owner


class Deals:
    """The partitions of the rounds of a run. Every round has parts of the same sizes.

    moving: with 1, every round draws a new partition. With less, the partitions are a random walk: in a new round,
        only this share of the units of each group is dealt again. These units, drawn at random, permute their
        first owners among themselves; 1/n of them come back to their node. So every unit meets every node in time.
        0 keeps the partition of the first round.
    shares: as in `partition_units`.
    """

    def __init__(
        self,
        groups: Sequence[NeuronGroup],
        world_size: int,
        *,
        seed: int,
        coverage: int = 1,
        moving: float = 1.0,
        shares: Sequence[float] = (),
    ) -> None:
        self._groups, self._world_size = groups, world_size
        self._seed, self._coverage, self._moving = seed, coverage, moving
        self._drawn = partial(partition_units, groups, world_size, seed=seed, coverage=coverage, shares=shares)
        self._last: tuple[int, Partition] | None = None

    def partition(self, round_index: int) -> Partition:
        """The partition of round `round_index`. A walk goes on from the round before, or from round 0."""
        if self._moving == 1:
            return self._drawn(round_index=round_index)
        reached, partition = self._last or (0, self._drawn(round_index=0))
        if reached > round_index:
            reached, partition = 0, self._drawn(round_index=0)
        for number in range(reached + 1, round_index + 1):
            partition = {group.name: self._walked(group, partition[group.name], number) for group in self._groups}
        self._last = round_index, partition
        return partition

    def _walked(self, group: NeuronGroup, parts: GroupPartition, round_index: int) -> GroupPartition:
        """`parts` after the step of the walk to round `round_index`."""
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "walk", round_index, group.name))
        again = torch.randperm(group.size, generator=generator)[: units_dealt(group.size, self._moving)]
        owner = parts.owner.clone()
        owner[again] = owner[again[torch.randperm(len(again), generator=generator)]]
        return _of_owners(owner, self._world_size, self._coverage)


def units_dealt(size: int, moving: float) -> int:
    """The number of `size` units that are dealt again: the share `moving`, rounded, but two if it is above 0."""
    return min(size, max(2, round(moving * size))) if moving else 0


def home_partition(groups: Sequence[NeuronGroup], world_size: int) -> Partition:
    """The fixed partition that keeps the entries of no subnet: consecutive units, evenly cut."""
    return {
        group.name: arranged(torch.arange(group.size).split(part_sizes(group.size, world_size))) for group in groups
    }


def _of_owners(owner: Tensor, world_size: int, coverage: int) -> GroupPartition:
    """The partition with these first owners [size], the units of a part in increasing order."""
    position = torch.empty(coverage, len(owner), dtype=torch.int64)
    parts = []
    for node in range(world_size):
        place = (node - owner) % world_size  # among the owners of a unit
        units = (place < coverage).nonzero().reshape(-1)
        position[place[units], units] = torch.arange(len(units))
        parts.append(units)
    return GroupPartition(tuple(parts), owner, position)


def arranged(units: Sequence[Tensor]) -> GroupPartition:
    """The partition of a group with `units`, per node, in that order; every unit has one owner."""
    size = sum(len(piece) for piece in units)
    owner = torch.empty(size, dtype=torch.int64)
    position = torch.empty(1, size, dtype=torch.int64)
    for node, mine in enumerate(units):
        owner[mine] = node
        position[0, mine] = torch.arange(len(mine))
    return GroupPartition(tuple(units), owner, position)
