"""The mean of what exchanges move, against exchanges that are counted."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from istbench.methods.subnets.exchange import ReduceToLead, Repartition, expected_moves, owned_behind
from istbench.methods.subnets.streaming import Flights, Timetable, expected_flights, turns_of
from istbench.workloads.neuron_groups.layout import layout_of
from istbench.workloads.neuron_groups.partition import Deals, home_partition, partition_units
from istbench.workloads.neuron_groups.structure import chain_groups

ROUNDS = 60


@pytest.mark.parametrize(
    ("nodes", "coverage", "moving"),
    [(1, 1, 1), (2, 1, 1), (3, 1, 1), (5, 1, 1), (4, 1, 0.25), (4, 2, 1), (4, 2, 0.25), (5, 3, 1), (3, 1, 0),
     (4, 3, 0.25)],
)  # fmt: skip
def test_expected_moves_are_the_mean_of_moves(nodes, coverage, moving):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2))
    layout = layout_of(model, chain_groups(model, model))
    home = home_partition(layout.groups, nodes)
    deals = Deals(layout.groups, nodes, seed=0, coverage=coverage, moving=moving)
    partitions = [deals.partition(number) for number in range(ROUNDS + 1)]
    # By tensor and plane: the values, and the optimizer's state.
    counted = {
        (cut.name, plane): SimpleNamespace(gathered=0, sent=0, reduced=0) for cut in layout.cut for plane in (0, 1)
    }
    reduced_from = {cut.name: [0] * nodes for cut in layout.cut}  # by the distance of an owner behind the lead
    for old, new in pairwise(partitions if nodes > 1 else []):
        plan, reduction = Repartition(layout, old, new, home), ReduceToLead(layout, old)
        for node in range(nodes):
            for peer in range(nodes):
                for block in plan.outgoing(node, peer):
                    for plane in (0, 1)[slice(*block.planes)]:
                        values = block.shape.numel() / nodes / ROUNDS
                        counted[block.tensor.name, plane].gathered += values
                        counted[block.tensor.name, plane].sent += (peer != node) * values
                for block in reduction.outgoing(node, peer):
                    counted[block.tensor.name, 0].reduced += block.shape.numel() / nodes / ROUNDS
                    reduced_from[block.tensor.name][(node - peer) % nodes] += block.shape.numel() / nodes / ROUNDS
    for cut in layout.cut:
        for plane in (0, 1):
            expected, seen = (
                expected_moves(cut, nodes, coverage, moving, state=plane == 1),
                counted[cut.name, plane],
            )
            assert seen.gathered == pytest.approx(expected.gathered, rel=0.03)
            assert seen.sent == pytest.approx(expected.sent, rel=0.07)  # few units move in a walk
            assert seen.reduced == pytest.approx(expected.reduced, rel=0.01)
        reduced = expected_moves(cut, nodes, coverage, moving).reduced
        shares = owned_behind(len(cut.axes), nodes, coverage)
        assert reduced_from[cut.name][1:] == pytest.approx([share * reduced for share in shares], rel=0.02)


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
                    values = sum(block.shape.numel() for block in flights.outgoing(node, peer))
                    wave_counted.gathered += bytes_each * values / nodes / ROUNDS
                    wave_counted.sent += (peer != node) * bytes_each * values / nodes / ROUNDS
    for number, wave_counted in enumerate(counted):
        expected = expected_flights(layout, table, number, {cut.name: bytes_each for cut in layout.cut})
        assert wave_counted.gathered == pytest.approx(expected.gathered, rel=0.1)
        assert wave_counted.sent == pytest.approx(expected.sent, rel=0.1)
