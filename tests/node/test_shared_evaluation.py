"""Evaluating by all nodes: what the metrics of the shares come to. `node_*` run on every node."""

import time

import pytest
import torch
from torch import nn

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.full_model import full_model
from istbench.node.shared_evaluation import Sharing, can_be_shared, hand_out, share_of
from istbench.studies.conformance.training import open_workload, set_up, train


@pytest.mark.parametrize(("size", "parts"), [(10, 1), (10, 3), (9, 4), (2, 5)])
def test_shares_are_all_of_the_batches_once(size, parts):
    batches = [(torch.arange(size) + first, torch.arange(size) - first) for first in (0, 100)]
    shares = [list(share_of(iter(batches), part, parts)) for part in range(parts)]
    for side in (0, 1):
        pieces = torch.cat([piece[side] for share in shares for piece in share])
        assert torch.equal(pieces.sort().values, torch.cat([batch[side] for batch in batches]).sort().values)
    assert max(len(piece[0]) for share in shares for piece in share) == -(-size // parts)


def test_each_way_is_tried_and_then_the_one_that_was_last_the_quicker(monkeypatch):
    now, sharing, chosen = [0.0], Sharing(possible=True), []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for seconds in (5.0, 3.0, 6.0, 7.0, 1.0):
        chosen.append(sharing.chosen())
        with sharing.timed(chosen[-1]):
            now[0] += seconds
    assert chosen == [False, True, True, False, True]
    assert not Sharing(possible=False).chosen()


def node_evaluates(fabric, name):
    workload = open_workload("toy", {"batch_norm": True})
    fabric.several_hosts = True
    sharing = Sharing(possible=can_be_shared(workload, fabric))
    method = set_up(fabric, workload, name, {})
    train(fabric, workload, method, 0, 4)
    training, found, moved = fabric.traffic["training"].sent, [], []
    for _ in range(2):  # by rank 0 alone, and shared
        before = fabric.traffic["assemble"].sent
        with full_model(method, workload, fabric, 0, sharing) as full:
            if full is not None:
                found.append(full.metrics())
        moved.append(fabric.traffic["assemble"].sent - before)
    assert fabric.traffic["training"].sent == training
    return [found, moved]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["ddp", "ist"])
def test_metrics_are_those_that_rank_0_finds_alone(name):
    ((alone, shared), moved), *_ = on_nodes(node_evaluates, 3, name)
    assert shared == pytest.approx(alone, rel=1e-6)
    assert moved[1] > moved[0]


def node_hands_out(fabric):
    torch.manual_seed(fabric.rank)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[3].weight = model[2].weight
    model[0].register_buffer("flags", torch.rand(5) > 0.5)
    if fabric.rank == 0:
        model.to(memory_format=torch.channels_last)
    before = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    hand_out(model, fabric)
    assert model[3].weight is model[2].weight
    return [before, {name: tensor.tolist() for name, tensor in model.state_dict().items()}]


@pytest.mark.processes
def test_every_node_has_rank_0s_values_whatever_their_type_and_order_in_memory():
    (wanted, _), *others = on_nodes(node_hands_out, 3)
    assert [after for _, after in others] == [wanted] * 2
    assert others[0][0] != wanted


def test_nodes_of_one_host_and_metrics_of_unknown_kind_are_not_shared():
    class Place:
        several_hosts = False

    toy = open_workload("toy", {})
    assert not can_be_shared(toy, Place)
    Place.several_hosts = True
    assert can_be_shared(toy, Place)
    assert not can_be_shared(open_workload("amazon670k", {"points": 100}), Place)
