"""The hidden units that each node trains, round by round. Pure: every node derives them from (seed, round)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from istbench.seeds import derived_seed
from istbench.subnets.groups import NeuronGroup


@dataclass(frozen=True)
class GroupPartition:
    """One group's units cut into n disjoint parts.

    units: per node, its units by their index in its part (int64); in increasing order, except in streaming IST.
    owner: [size], the node of every unit.
    position: [size], the index of every unit within its node's part.
    """

    units: tuple[Tensor, ...]
    owner: Tensor
    position: Tensor


Partition = dict[str, GroupPartition]
"""`GroupPartition` by group name."""


def part_sizes(size: int, world_size: int) -> list[int]:
    """Sizes of n parts that differ by at most one. Node k's size is the same in every round."""
    return [size // world_size + (node < size % world_size) for node in range(world_size)]


def partition_units(groups: Sequence[NeuronGroup], world_size: int, *, seed: int, round_index: int) -> Partition:
    """A seeded random partition of every group's units into `world_size` disjoint parts.

    Groups are permuted independently (Independent Subnet Training, arXiv 1910.02120, section 3). Units within
    a part are sorted, so that one node's part is all units in their own order.

    Raises:
        ValueError: if a group has fewer units than there are nodes.
    """
    partition = {}
    for group in groups:
        if group.size < world_size:
            raise ValueError(f"neuron group {group.name!r} has {group.size} units for {world_size} nodes")
        key = derived_seed(seed, "partition", round_index, group.name)
        generator = torch.Generator().manual_seed(key)
        permutation = torch.randperm(group.size, generator=generator)
        partition[group.name] = _parts(permutation.split(part_sizes(group.size, world_size)))
    return partition


def home_partition(groups: Sequence[NeuronGroup], world_size: int) -> Partition:
    """The fixed partition that keeps the entries of no subnet: consecutive units, evenly cut."""
    return {
        group.name: _parts(torch.arange(group.size).split(part_sizes(group.size, world_size))) for group in groups
    }


def _parts(pieces: Sequence[Tensor]) -> GroupPartition:
    return arranged([piece.sort().values for piece in pieces])


def arranged(units: Sequence[Tensor]) -> GroupPartition:
    """The partition of a group with `units`, per node, in that order."""
    size = sum(len(piece) for piece in units)
    owner = torch.empty(size, dtype=torch.int64)
    position = torch.empty(size, dtype=torch.int64)
    for node, mine in enumerate(units):
        owner[mine] = node
        position[mine] = torch.arange(len(mine))
    return GroupPartition(tuple(units), owner, position)
