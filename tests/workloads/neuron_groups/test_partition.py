"""Partitions of units: owners, sizes of parts, and walks from round to round."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.seeds import derived_seed
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.partition import (
    Deals,
    common_owners,
    part_sizes,
    partition_units,
    units_dealt,
)


def group(size, name="a"):
    return NeuronGroup(name, size, ())


@st.composite
def cases(draw):
    """A number of units, of nodes, and a coverage that gives every node a unit."""
    nodes = draw(st.integers(1, 6))
    coverage = draw(st.integers(1, nodes))
    return draw(st.integers(-(-nodes // coverage), 40)), nodes, coverage


def held(parts, node):
    """[size], whether `node` owns each unit."""
    return (node - parts.owner) % len(parts.units) < parts.coverage


def same(one, other):
    return torch.equal(one.owner, other.owner) and torch.equal(one.position, other.position)


@given(case=cases(), seed=st.integers(0, 99), round_index=st.integers(0, 9))
def test_every_unit_has_its_owners_and_parts_differ_by_at_most_one(case, seed, round_index):
    size, nodes, coverage = case
    parts = partition_units([group(size)], nodes, seed=seed, round_index=round_index, coverage=coverage)["a"]
    assert [len(units) for units in parts.units] == part_sizes(size * coverage, nodes)
    assert torch.equal(torch.cat(parts.units).bincount(minlength=size), torch.full((size,), coverage))
    for node, units in enumerate(parts.units):
        assert torch.equal(units, held(parts, node).nonzero().flatten())
        assert torch.equal(parts.places(node, units), torch.arange(len(units)))


@given(case=cases(), seed=st.integers(0, 99))
def test_with_one_owner_the_parts_are_runs_of_a_random_order(case, seed):
    size, nodes, _ = case
    if size < nodes:
        return
    key = derived_seed(seed, "partition", 4, "a")
    order = torch.randperm(size, generator=torch.Generator().manual_seed(key))
    parts = partition_units([group(size)], nodes, seed=seed, round_index=4)["a"]
    for units, run in zip(parts.units, order.split(part_sizes(size, nodes)), strict=True):
        assert torch.equal(units, run.sort().values)


def test_groups_of_too_few_units_are_refused():
    partition_units([group(2)], 4, seed=0, round_index=0, coverage=2)
    with pytest.raises(ValueError, match="'a' has 2 units for 4 nodes"):
        partition_units([group(2)], 4, seed=0, round_index=0)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
def test_common_owners_are_counted_by_the_distance(nodes):
    for coverage in range(1, nodes + 1):
        arcs = [{(first + place) % nodes for place in range(coverage)} for first in range(nodes)]
        for first in range(nodes):
            for other in range(nodes):
                assert common_owners(other - first, nodes, coverage) == len(arcs[first] & arcs[other])


@given(case=cases(), moving=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_walk_deals_its_share_again_and_keeps_the_sizes(case, moving, seed):
    size, nodes, coverage = case
    deals = Deals([group(size)], nodes, seed=seed, coverage=coverage, moving=moving)
    before, most = deals.partition(0)["a"], units_dealt(size, moving)
    assert most == min(size, max(2, round(moving * size)))
    for number in range(1, 5):
        after = deals.partition(number)["a"]
        assert int((after.owner != before.owner).sum()) <= most
        assert torch.equal(after.owner.sort().values, before.owner.sort().values)
        assert [len(units) for units in after.units] == [len(units) for units in before.units]
        before = after


@pytest.mark.parametrize(("nodes", "moving"), [(2, 0.25), (4, 0.25), (4, 0.6)])
def test_the_share_of_a_walk_that_changes_its_owner(nodes, moving):
    size, rounds, moved = 80, 200, 0
    deals = Deals([group(size)], nodes, seed=0, moving=moving)
    for number in range(rounds):
        moved += int((deals.partition(number)["a"].owner != deals.partition(number + 1)["a"].owner).sum())
    again = round(moving * size)
    assert moved / rounds / size == pytest.approx((again - 1) / (size - 1) * (1 - 1 / nodes), rel=0.05)


@pytest.mark.parametrize("coverage", [1, 2])
def test_every_unit_of_a_walk_meets_every_node(coverage):
    deals = Deals([group(11)], 4, seed=0, coverage=coverage, moving=0.1)
    met = torch.zeros(4, 11, dtype=torch.bool)
    for number in range(400):
        parts = deals.partition(number)["a"]
        met |= torch.stack([held(parts, node) for node in range(4)])
    assert met.all()


def test_a_share_of_none_never_moves_and_of_all_draws_every_round_anew():
    still, fresh = (Deals([group(24)], 3, seed=5, moving=moving) for moving in (0.0, 1.0))
    drawn = [partition_units([group(24)], 3, seed=5, round_index=number)["a"] for number in range(4)]
    for number in range(4):
        assert same(still.partition(number)["a"], drawn[0])
        assert same(fresh.partition(number)["a"], drawn[number])
    assert not same(drawn[0], drawn[1])


def test_a_round_has_the_same_partition_on_every_way_to_it():
    walked = Deals([group(24)], 3, seed=5, moving=0.3)
    steps = [walked.partition(number)["a"] for number in range(8)]
    for number in (7, 3, 5):  # as after a resume, and back
        assert same(walked.partition(number)["a"], steps[number])
        assert same(Deals([group(24)], 3, seed=5, moving=0.3).partition(number)["a"], steps[number])
    assert not same(Deals([group(24)], 3, seed=6, moving=0.3).partition(7)["a"], steps[7])


@pytest.mark.parametrize("moving", [1.0, 0.3])
def test_parts_are_in_proportion_to_shares_in_every_round(moving):
    deals = Deals([group(24), group(5, "b")], 3, seed=5, moving=moving, shares=(0.5, 1, 1.5))
    rounds = [deals.partition(number) for number in range(4)]
    assert {tuple(map(len, parts["a"].units)) for parts in rounds} == {(4, 8, 12)}
    assert {tuple(map(len, parts["b"].units)) for parts in rounds} == {(1, 2, 2)}
    assert all(torch.equal(torch.cat(parts["a"].units).sort().values, torch.arange(24)) for parts in rounds)
    assert not torch.equal(rounds[0]["a"].owner, rounds[1]["a"].owner)
