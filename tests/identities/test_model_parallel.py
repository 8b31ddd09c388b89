"""A wide softmax split over nodes is the whole one. Functions named `node_*` run on every node."""

import functools

import pytest
import torch

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.footprint import PlannedNode
from istbench.methods.optimizer import OptimizerOptions
from istbench.node.compute_options import Computed
from istbench.node.digest import weights_sha256
from istbench.node.registry import build_method
from istbench.plan.step import step_cost
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    through_disk,
    train,
)
from istbench.workloads.contract import blank_model

EXACT = 2e-5  # float32 sums in another order, over some steps
STEPS = 6
UNEVEN = {"hidden": 7, "features": 40, "labels": 23, "points": 400, "block": 5}
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "lr": 0.5},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam, cosine": {"optimizer": "adam", "lr": 0.01, "schedule": "cosine", "warmup": 0.2},
}


def small(**options):
    workload = open_workload("amazon670k", {**UNEVEN, **options})
    workload.batch_size = 32
    return workload


def node_against_plain(fabric):
    """By optimizer, how far from one process with the whole model, and whether resuming changes nothing."""
    workload, seen = small(), {}
    for name, options in OPTIMIZERS.items():
        whole, first, second = (set_up(fabric, workload, "model_parallel", options, steps=STEPS) for _ in range(3))
        losses = train(fabric, workload, whole, 0, STEPS)
        train(fabric, workload, first, 0, 2)
        second.load_state_dict(through_disk(first.state_dict(), fabric.rank))
        train(fabric, workload, second, 2, STEPS)
        model, again = assembled(fabric, whole), assembled(fabric, second)
        if model is not None:
            wanted = plain_training(workload, OptimizerOptions(**options), STEPS)
            same = weights_sha256(again) == weights_sha256(model)
            seen[name] = [largest_difference(model, wanted), same, losses]
    return seen


def node_all(fabric):
    """What each part for so many nodes saw, by its name."""
    more = {2: [node_reads_a_unit_at_a_time, node_half], 3: [node_bytes]}.get(fabric.world_size, [])
    return {part.__name__: part(fabric) for part in (node_against_plain, *more)}


found_by_nodes = functools.cache(functools.partial(on_nodes, node_all))


def found_by(part, nodes):
    """What each node saw in a part."""
    return [found[part.__name__] for found in found_by_nodes(nodes)]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_model_parallel_is_plain_training_and_resumes_exactly(nodes):
    seen = found_by(node_against_plain, nodes)[0]
    assert seen.keys() == OPTIMIZERS.keys()
    for name, (difference, resumed, losses) in seen.items():
        assert difference < EXACT, (name, difference)
        assert resumed, name
        assert losses[-1] < losses[0], name


def node_reads_a_unit_at_a_time(fabric):
    method = set_up(fabric, small(), "model_parallel", {})
    block = method.blocks()
    read = [block("input.weight", 1, unit, unit + 1) for unit in range(UNEVEN["hidden"])]
    model = assembled(fabric, method)
    return model is None or torch.equal(torch.cat(read, 1), model.input.weight)


def test_one_of_a_nodes_units_can_be_read():
    assert found_by(node_reads_a_unit_at_a_time, 2) == [True, True]


def node_bytes(fabric):
    """What this node posted, sent and received in a step, and the traffic of assembling."""
    workload = small()
    method = set_up(fabric, workload, "model_parallel", {})
    posted = []
    fabric.recorder.post = lambda kind, size, *_: posted.append([kind, size]) or -1
    traffic = fabric.traffic["training"]
    traffic.sent = traffic.received = 0
    train(fabric, workload, method, 0, 1)
    counted = traffic.sent, traffic.received
    assembled(fabric, method)
    return [posted, counted, counted == (traffic.sent, traffic.received)]


def test_bytes_of_a_step_are_those_of_the_plan_and_do_not_grow_with_the_outputs():
    workload, nodes, batch = small(labels=2_000), 3, 32
    model = blank_model(workload)
    method = build_method("model_parallel", {}, workload=workload)
    footprint = method.footprint(model, workload, nodes, batch)
    node = PlannedNode(0, nodes, step_cost(footprint.model, workload, batch, copied=False), 1.0)
    planned = []
    node.post = lambda kind, size, *_: planned.append([kind, size]) or -1
    node.wait = lambda ops: None
    next(footprint.rounds(node))
    hidden = 4 * 3 * batch  # three of seven units at most
    assert planned == [["all_gather", hidden], ["all_gather", 4 * (batch + 1)], ["reduce_scatter", 3 * hidden]]
    for posted, counted, apart in found_by(node_bytes, nodes):
        assert posted == planned
        assert counted == [2 * hidden + 2 * 4 * (batch + 1) + 2 * hidden] * 2
        assert apart


def node_half(fabric):
    """How far half precision takes the model from float32, and how far training does."""
    workload, models = small(), {}
    for amp in (None, "bf16", "fp16"):
        told = Computed(workload, fabric.device, amp=amp)
        method = set_up(fabric, told, "model_parallel", OPTIMIZERS["sgd"])
        start = assembled(fabric, method)
        train(fabric, told, method, 0, STEPS)
        models[amp] = assembled(fabric, method)
    if start is None:
        return None
    return [largest_difference(models[other], models[None]) for other in ("bf16", "fp16")] + [
        largest_difference(start, models[None])
    ]


def test_half_precision_is_near_and_its_loss_scaled_back():
    bf16, fp16, moved = found_by(node_half, 2)[0]
    assert 0 < bf16 < 0.1 * moved
    assert 0 < fp16 < 0.02 * moved


def test_a_part_keeps_its_share_alone():
    workload = small(labels=24)
    model = blank_model(workload)
    method = build_method("model_parallel", {"optimizer": "adam"}, workload=workload)
    kept = sum(parameter.numel() for parameter in method.footprint(model, workload, 4, 32).model.parameters())
    assert kept == 40 * 2 + 2 + 6 * 7 + 6
