"""The mean of what exchanges move, against exchanges that are counted."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from istbench.subnets.exchange import Repartition, expected_moves
from istbench.subnets.layout import layout_of
from istbench.subnets.partition import home_partition, partition_units
from istbench.subnets.streaming import Flights, Timetable, expected_flights, turns_of
from istbench.subnets.structure import chain_groups

ROUNDS = 60


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_expected_moves_are_the_mean_of_moves(nodes):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2))
    layout = layout_of(model, chain_groups(model, model))
    home = home_partition(layout.groups, nodes)
    partitions = [partition_units(layout.groups, nodes, seed=0, round_index=index) for index in range(ROUNDS + 1)]
    counted = {cut.name: SimpleNamespace(gathered=0, sent=0) for cut in layout.cut}
    for old, new in pairwise(partitions):
        plan = Repartition(layout, old, new, home)
        for node in range(nodes if nodes > 1 else 0):
            for peer in range(nodes):
                for block in plan.outgoing(node, peer):
                    counted[block.tensor.name].gathered += block.shape().numel() / nodes / ROUNDS
                    counted[block.tensor.name].sent += (peer != node) * block.shape().numel() / nodes / ROUNDS
    for cut in layout.cut:
        expected = expected_moves(cut, nodes)
        assert counted[cut.name].gathered == pytest.approx(expected.gathered, rel=0.03)
        assert counted[cut.name].sent == pytest.approx(expected.sent, rel=0.03)


@pytest.mark.parametrize("nodes", [2, 3])
def test_expected_flights_are_the_mean_of_flights(nodes):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2))
    layout = layout_of(model, chain_groups(model, model))
    home = home_partition(layout.groups, nodes)
    partition = partition_units(layout.groups, nodes, seed=0, round_index=0)
    table, bytes_each = Timetable(layout.groups, nodes, 0, 5, turns_of(layout)), 4
    counted = [SimpleNamespace(gathered=0, sent=0) for _ in range(table.waves)]
    for round_index in range(ROUNDS):
        for number, wave_counted in enumerate(counted):
            wave = table.wave(partition, round_index, number)
            flights, partition = Flights(layout, wave, home), wave.new
            for node in range(nodes):
                for peer in range(nodes):
                    values = sum(block.shape().numel() for block in flights.outgoing(node, peer))
                    wave_counted.gathered += bytes_each * values / nodes / ROUNDS
                    wave_counted.sent += (peer != node) * bytes_each * values / nodes / ROUNDS
    for number, wave_counted in enumerate(counted):
        expected = expected_flights(layout, table, number, {cut.name: bytes_each for cut in layout.cut})
        assert wave_counted.gathered == pytest.approx(expected.gathered, rel=0.1)
        assert wave_counted.sent == pytest.approx(expected.sent, rel=0.1)
