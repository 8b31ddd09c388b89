"""Streaming played out in one process: counts kept, every entry in one place, values where they belong."""

from itertools import permutations

import pytest
import torch
from test_exchange import attention, cnn, holders, holdings_of, mlp, recurrent
from torch import nn

from istbench.methods.subnets.exchange import count_values, gather_blocks, values_of_blocks, write_blocks
from istbench.methods.subnets.streaming import Flights, Timetable, turns_of
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot, named_tensors
from istbench.workloads.neuron_groups.layout import layout_of, subnet_index, write
from istbench.workloads.neuron_groups.partition import home_partition, partition_units

MODELS = {"mlp": mlp, "cnn": cnn, "attention": attention}
LIKE = torch.empty(0)


def timetable(groups, world_size, waves, turns=None, seed=3):
    return Timetable(tuple(groups), world_size, seed, waves, turns or {group.name: 0 for group in groups})


def one_group(size, world_size, waves):
    group = NeuronGroup("a", size, ())
    start = partition_units([group], world_size, seed=0, round_index=0)
    return group, start, timetable([group], world_size, waves)


@pytest.mark.parametrize(
    ("size", "world_size", "waves"), [(4096, 4, 20), (13, 3, 4), (7, 5, 3), (64, 4, 19), (9, 1, 2)]
)
def test_counts_and_places_are_kept_and_no_unit_moves_twice_a_round(size, world_size, waves):
    _, partition, table = one_group(size, world_size, waves)
    sizes = [len(units) for units in partition["a"].units]
    for round_index in range(3):
        moved = torch.zeros(size)
        for number in range(waves):
            wave = table.wave(partition, round_index, number)
            old, new = wave.old["a"], wave.new["a"]
            changed = (old.owner != new.owner).nonzero().flatten()
            assert torch.equal(wave.moving.get("a", LIKE.long()).sort().values, changed)
            moved[changed] += 1
            assert torch.equal(
                (old.position[0] != new.position[0]) & (old.owner == new.owner), torch.zeros(size).bool()
            )
            assert [len(units) for units in new.units] == sizes
            for node, units in enumerate(new.units):
                assert torch.equal(new.owner[units], torch.full_like(units, node))
                assert torch.equal(new.places(node, units), torch.arange(len(units)))
            partition = wave.new
        assert moved.max() <= 1


@pytest.mark.parametrize(("size", "world_size", "waves"), [(4096, 4, 20), (60, 3, 30), (16, 2, 5)])
def test_as_many_units_move_as_expected_and_to_any_node(size, world_size, waves):
    group, partition, table = one_group(size, world_size, waves)
    start, moved, rounds = partition["a"].owner, torch.zeros(size), 60
    for round_index in range(rounds):
        for number in range(waves):
            wave = table.wave(partition, round_index, number)
            moved[wave.moving.get("a", LIKE.long())] += 1
            partition = wave.new
    assert moved.mean().item() / rounds == pytest.approx(table.moving_share(group), rel=0.05)
    assert moved.min() > 0
    reached = torch.bincount(partition["a"].owner[start == 0], minlength=world_size)
    assert reached.min() > 0


def test_orders_are_drawn_anew_and_by_the_seed():
    group, start, table = one_group(40, 2, 4)
    other = timetable([group], 2, 4, seed=4)
    drawn = [t.wave(start, r, 0).moving["a"].tolist() for t, r in ((table, 0), (table, 1), (other, 0))]
    assert drawn[0] not in drawn[1:]
    assert drawn[0] == timetable([group], 2, 4).wave(start, 0, 0).moving["a"].tolist()


def test_groups_that_share_a_tensor_take_turns():
    layout = layout_of(*cnn())
    turns = turns_of(layout)
    assert turns == {"conv1": 0, "conv2": 1, "fc": 0}
    table = timetable(layout.groups, 2, 5, turns)
    for number in range(5):
        moving = {group.name for group in layout.groups if table.takes(group, number)}
        assert not {"conv1", "conv2"} <= moving
        assert not {"conv2", "fc"} <= moving
    for group in layout.groups:
        assert sum(table.takes(group, number) for number in range(5)) == table.pieces(group)


def test_small_groups_move_one_after_the_other():
    groups = [NeuronGroup(name, 4, ()) for name in "abcde"]
    table = timetable(groups, 4, 10)
    moving = [[group.name for group in groups if table.takes(group, number)] for number in range(10)]
    assert sorted(filter(None, moving)) == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_weights_between_units_of_one_group_do_not_stream():
    with pytest.raises(ValueError, match="state is between units of one group, 'hidden'"):
        turns_of(layout_of(*recurrent()))


class Nodes:
    """n nodes' holdings side by side, two planes of every tensor; a wave lands when the next one leaves."""

    def __init__(self, name, world_size, waves=4):
        torch.manual_seed(0)
        model, groups = MODELS[name]()
        self.full = {name: [t.detach().clone(), t.detach() * 2] for name, t in named_tensors(model).items()}
        self.layout, self.nodes = layout_of(model, groups), range(world_size)
        self.table = timetable(groups, world_size, waves, turns_of(self.layout))
        self.home = home_partition(groups, world_size)
        self.partition = partition_units(groups, world_size, seed=1, round_index=0)
        self.held = [self.whole(node) for node in self.nodes]
        self.flights, self.wire = None, []

    def whole(self, node):
        return holdings_of(node, self.layout, self.full, self.partition, self.home)

    def leave(self, round_index, number):
        wave = self.table.wave(self.partition, round_index, number)
        if not wave.moving:
            return
        self.flights = Flights(self.layout, wave, self.home)
        held, flights = self.held, self.flights
        self.wire = [[gather_blocks(held[a], flights.outgoing(a, b), LIKE) for b in self.nodes] for a in self.nodes]
        self.partition = wave.new
        for node in self.nodes:
            for name, dim, index in flights.empty(node):
                for plane in held[node].subnet[name]:
                    plane.index_fill_(dim, index, torch.nan)

    def land(self):
        for b in self.nodes if self.flights else ():
            for a in self.nodes:
                blocks = self.flights.incoming(b, a)
                assert count_values(self.held[b], blocks) == self.wire[a][b].numel()
                write_blocks(self.held[b], blocks, self.wire[a][b])
        self.flights = None

    def train(self, amount):
        """Every node adds to what it trains; so does the full model, which says what is trained."""
        for cut in self.layout.cut:
            trained = torch.zeros(cut.shape)
            for node in self.nodes:
                mine = self.held[node].subnet[cut.name]
                for plane in mine:
                    plane += amount
                where = torch.where(mine[0].isnan(), 0.0, 1.0)
                write(trained, cut.axes, subnet_index(cut, self.partition, node), where)
            for plane in self.full[cut.name]:
                plane += amount * trained

    def assembled(self, name):
        cut = next(cut for cut in self.layout.cut if cut.name == name)
        whole, writes = torch.full(cut.shape, torch.nan), torch.zeros(cut.shape)
        if cut.needs_home:
            for node in self.nodes:
                rows = subnet_index(cut, self.home, node)[:1]
                write(whole, cut.axes[:1], rows, self.held[node].home[name][0])
        for node in self.nodes:
            index = subnet_index(cut, self.partition, node)
            mine = self.held[node].subnet[name][0]
            write(whole, cut.axes, index, mine)
            writes += _ones(cut, index, torch.where(mine.isnan(), 0.0, 1.0))
        for a in self.nodes if self.flights else ():
            for b in self.nodes:
                moves = self.flights.moves(a, b)
                values = values_of_blocks(self.held[b], self.flights.incoming(b, a), self.wire[a][b])
                for move, block in zip(moves, values, strict=True):
                    if move.tensor is cut:
                        write(whole, cut.axes, cut.index(move.units), block)
                        writes += _ones(cut, cut.index(move.units), torch.ones(block.shape))
        return whole, writes


def sent_over_least(deal, world_size, moving, rounds=3, waves=20):
    """Values that nodes send in some rounds, over those that change their holder between rounds."""
    model = nn.Sequential(*(nn.Linear(40, 40, bias=False) for _ in range(4)))
    groups = [
        NeuronGroup(f"hidden{place}", 40, (Slot(f"{place - 1}.weight", 0), Slot(f"{place}.weight", 1)))
        for place in deal
    ]
    layout, home = layout_of(model, groups), home_partition(groups, world_size)
    table = Timetable(tuple(groups), world_size, 0, waves, turns_of(layout), moving)
    partition = partition_units(groups, world_size, seed=0, round_index=0)
    sent = least = 0
    for round_index in range(rounds):
        before = {cut.name: holders(cut, partition, home, world_size) for cut in layout.cut}
        for number in range(waves):
            wave = table.wave(partition, round_index, number)
            flights, partition = Flights(layout, wave, home), wave.new
            sent += sum(
                block.shape.numel()
                for a, b in permutations(range(world_size), 2)
                for block in flights.outgoing(a, b)
            )
        least += sum(
            int((before[cut.name] != holders(cut, partition, home, world_size)).sum()) for cut in layout.cut
        )
    return sent / least


@pytest.mark.parametrize("world_size", [2, 4])
def test_units_without_dealt_neighbours_send_the_least_and_few_movers_little_more(world_size):
    assert sent_over_least((1, 3), world_size, 1.0) == 1
    every, few = (sent_over_least((1, 2, 3), world_size, moving) for moving in (1.0, 0.1))
    assert 1 < few < 1.05 < 1.1 < every


def _ones(cut, index, values):
    there = torch.zeros(cut.shape)
    write(there, cut.axes, index, values)
    return there


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_entries_are_trained_by_one_node_or_fly_once_or_are_at_home_with_the_values_they_have(name, world_size):
    nodes = Nodes(name, world_size)
    for step in range(1, 21):
        nodes.train(step)
        if step % 3:  # some waves fly for two steps
            nodes.land()
            nodes.leave(step // 4, step % 4)
        for cut in nodes.layout.cut:
            whole, writes = nodes.assembled(cut.name)
            assert torch.equal(whole, nodes.full[cut.name][0])
            assert writes.max() <= 1
            if not cut.needs_home:
                assert writes.min() == 1
    nodes.land()
    for node in nodes.nodes:
        wanted = nodes.whole(node).subnet
        for tensor, planes in nodes.held[node].subnet.items():
            assert all(torch.equal(plane, want) for plane, want in zip(planes, wanted[tensor], strict=True))
