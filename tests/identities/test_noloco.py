"""NoLoCo against DiLoCo and against its definition, on real processes. `node_*` run on every node."""

import copy

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.footprint import tensor_bytes
from istbench.methods.noloco import partner_of
from istbench.studies.conformance.training import (
    assembled,
    batches_of,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    train,
)

EXACT = 2e-5  # float32 sums in another order
LOCAL_STEPS, STEPS = 4, 14  # ends inside a round
PLAIN = {"hidden": 13, "layers": 2}
NORMALISED = {**PLAIN, "batch_norm": True}
OUTER = {"local_steps": LOCAL_STEPS, "optimizer": "sgd", "lr": 0.1, "outer_lr": 0.7}


def node_pair(fabric):
    """On two nodes: the differences from diloco without momentum, at the end of a round and inside one."""
    workload, differences = open_workload("toy", NORMALISED), []
    both = [set_up(fabric, workload, name, {**OUTER, "outer_momentum": 0.0}) for name in ("noloco", "diloco")]
    for first, last in ((0, 2 * LOCAL_STEPS), (2 * LOCAL_STEPS, STEPS)):
        for method in both:
            train(fabric, workload, method, first, last)
        models = [assembled(fabric, method) for method in both]
        if models[0] is not None:
            differences.append(largest_difference(*models))
    both[0].close_round()
    before, ring = copy.deepcopy(assembled(fabric, both[0])), fabric.traffic["training"].sent
    both[0].finish()
    state = both[0].state_dict()
    after = assembled(fabric, both[0])
    ends = None if after is None else largest_difference(before, after)
    mean = tensor_bytes(own for own in state["model"].values() if own.is_floating_point())
    ring = fabric.traffic["training"].sent - ring - mean
    plain = against_definition(fabric)
    return {
        "finish": [ends, ring],
        "diloco": differences,
        "momentum": plain,
        "slow": state["outer"]["start"]["0"].tolist(),
    }


def node_odd(fabric):
    """On an odd number of nodes."""
    return {"definition": against_definition(fabric), "apart": apart(fabric)}


def against_definition(fabric):
    """The largest difference from a reference that gathers the weights of all nodes."""
    workload = open_workload("toy", PLAIN)
    method = set_up(fabric, workload, "noloco", {**OUTER, "outer_momentum": 0.5, "pull": 0.8})
    train(fabric, workload, method, 0, STEPS)
    model = assembled(fabric, method)
    mine = plain_training(workload, method.options, 0)
    optimizer = method.options.build(mine.parameters())
    batches = batches_of(fabric, workload, method)
    slow = parameters_to_vector(mine.parameters()).detach()
    momentum = torch.zeros_like(slow)
    for step in range(STEPS):
        optimizer.zero_grad()
        workload.loss(mine, workload.train_batch(batches.indices(step), batches.generator(step))).backward()
        optimizer.step()
        if (step + 1) % LOCAL_STEPS == 0 or step + 1 == STEPS:
            own = torch.stack([slow, parameters_to_vector(mine.parameters()).detach() - slow])
            every = own.new_empty(fabric.world_size * own.numel())
            fabric.all_gather_async(every, own.flatten(), "all weights").wait()
            of_rank = every.view(fabric.world_size, 2, -1)
            partner = partner_of(fabric.rank, fabric.world_size, 0, step // LOCAL_STEPS)
            pair = of_rank[[fabric.rank] if partner is None else [fabric.rank, partner]].mean(dim=0)
            momentum = 0.5 * momentum + 0.7 * pair[1] - 0.8 * (slow - pair[0])
            slow = slow + momentum
            vector_to_parameters(slow.clone(), mine.parameters())
    fabric.all_reduce_mean(slow)
    vector_to_parameters(slow, mine.parameters())
    return None if model is None else largest_difference(model, mine)


def apart(fabric):
    """Distance of this node's slow weights from their mean, before and after rounds without training."""
    workload = open_workload("toy", PLAIN)
    method = set_up(fabric, workload, "noloco", {"local_steps": 1, "lr": 0.0, "weight_decay": 0.0})
    state = method.state_dict()
    slow = state["outer"]["start"]["0"]
    slow.add_(torch.randn(len(slow), generator=torch.Generator().manual_seed(fabric.rank)))
    vector_to_parameters(slow.clone(), state["model"].values())
    method.load_state_dict(state)
    means, distances = [], []
    for step in range(41):
        if step % 40 == 0:
            slow = method.state_dict()["outer"]["start"]["0"]
            mean = slow.clone()
            fabric.all_reduce_mean(mean)
            means.append(mean)
            distances.append(float((slow - mean).norm()))
        train(fabric, workload, method, step, step + 1)
    return [*distances, float((means[1] - means[0]).abs().max())]


@pytest.fixture(scope="module")
def pair():
    return on_nodes(node_pair, 2)


@pytest.fixture(scope="module")
def odd():
    return on_nodes(node_odd, 3)


def test_two_nodes_without_momentum_are_diloco(pair):
    assert len(pair[0]["diloco"]) == 2
    assert max(pair[0]["diloco"]) < EXACT
    assert pair[0]["slow"] == pair[1]["slow"]  # bit for bit


def test_the_last_exchange_is_one_ring_and_leaves_the_model(pair):
    moved, more_bytes = pair[0]["finish"]
    assert moved < EXACT
    assert more_bytes == 0


def test_it_is_its_definition_with_pairs_and_a_node_left_over(pair, odd):
    assert pair[0]["momentum"] < EXACT
    assert odd[0]["definition"] < EXACT


def test_without_training_the_nodes_meet_at_their_mean(odd):
    for before, after, moved in (of_node["apart"] for of_node in odd):
        assert after < 0.05 * before
        assert moved < EXACT


@pytest.mark.parametrize("nodes", [1, 2, 5, 8])
def test_pairs_are_mutual_and_one_node_at_most_is_left_over(nodes):
    drawn = set()
    for number in range(20):
        partners = [partner_of(rank, nodes, 3, number) for rank in range(nodes)]
        assert partners.count(None) == nodes % 2
        assert all(partners[other] == rank for rank, other in enumerate(partners) if other is not None)
        drawn.add(tuple(partners))
    assert len(drawn) > 5 or nodes <= 2
