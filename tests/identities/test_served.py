"""A parameter server, with and without P3's slices and priority, is data parallel."""

import os
import signal
import time
from unittest.mock import patch

import pytest
import torch
from odd_model import OddToy, mean_gradient_training

from istbench.base.errors import RunFailed
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.served import model as served_model
from istbench.methods.served.memory import DirectMemory, StagedMemory
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    set_up,
    through_disk,
    train,
)

EXACT = 2e-5  # float32 sums in another order, over some tens of steps
WIDE = {"hidden": 64, "layers": 3}  # 9,092 parameters, 4,096 in the largest tensor
OPTIMIZERS = {
    "momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "lr": 0.002},
    "adamw": {"optimizer": "adamw", "lr": 0.002, "weight_decay": 0.1, "weight_decay_of": "matrices", "beta2": 0.99},
}
SCHEDULED = {
    "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.2,
}  # fmt: skip
SERVED = {
    "parameter_server": ("parameter_server", {}),
    "parameter_server, large tensors split": ("parameter_server", {"split_params": 1_000}),
    "p3, slices of 1,000": ("p3", {"slice_params": 1_000}),
    "p3, slices of 1,000, a window of one": ("p3", {"slice_params": 1_000, "window": 1}),
    "p3, slices of 77, no priority": ("p3", {"slice_params": 77, "priority": False}),
    "p3, whole tensors": ("p3", {"slice_params": 0}),
    "p3, defaults": ("p3", {}),
}


def node_served_against_ddp(fabric, steps):
    workload = open_workload("toy", WIDE)
    differences = {}
    for optimizer, options in {**OPTIMIZERS, "scheduled": SCHEDULED}.items():
        reference = set_up(fabric, workload, "ddp", options, steps=steps)
        train(fabric, workload, reference, 0, steps)
        wanted = assembled(fabric, reference)
        for label, (name, own) in SERVED.items():
            if options is SCHEDULED and label not in ("parameter_server", "p3, slices of 77, no priority"):
                continue
            method = set_up(fabric, workload, name, {**options, **own}, steps=steps)
            train(fabric, workload, method, 0, steps)
            model = assembled(fabric, method)
            if model is not None:
                differences[f"{label}, {optimizer}"] = largest_difference(model, wanted)
    return differences


@pytest.mark.parametrize("nodes", [2, 3])
def test_p3_and_parameter_server_are_ddp(nodes):
    differences = on_nodes(node_served_against_ddp, nodes, 6)[0]
    assert len(differences) == len(OPTIMIZERS) * len(SERVED) + 2
    exact = {label: difference for label, difference in differences.items() if "adam" not in label}
    assert max(exact.values()) < EXACT, exact
    # Adam divides by the root of its second moment, which magnifies the last bits of small gradients.
    assert max(differences.values()) < 1e-4, differences


def odd_workload():
    workload = OddToy()
    workload.open(workload.prepare(None, None, lambda *_: None))
    return workload


def node_odd_models(fabric, steps):
    workload = odd_workload()
    differences = {}
    for optimizer, options in OPTIMIZERS.items():
        for parts in (1, 2):
            own = {"slice_params": 50, "accumulation_steps": parts}
            method = set_up(fabric, workload, "p3", {**options, **own})
            train(fabric, workload, method, 0, steps)
            model = assembled(fabric, method)
            if model is not None:
                wanted = mean_gradient_training(
                    workload, method.options, steps, nodes=fabric.world_size, parts=parts
                )
                differences[f"{optimizer}, {parts} parts"] = largest_difference(model, wanted)
    return differences


@pytest.mark.parametrize("nodes", [1, 3])
def test_p3_is_right_for_shared_unused_frozen_and_oddly_used_parameters_and_accumulated_gradients(nodes):
    differences = on_nodes(node_odd_models, nodes, 6)[0]
    assert len(differences) == 6
    assert max(differences.values()) < 1e-6, differences


def node_odd_resumed(fabric, steps):
    workload = odd_workload()
    options = {**OPTIMIZERS["adamw"], "slice_params": 50, "schedule": "step", "decay_at": (0.3, 0.6)}
    whole = set_up(fabric, workload, "p3", options, steps=steps)
    train(fabric, workload, whole, 0, steps)
    first, second = (set_up(fabric, workload, "p3", options, steps=steps) for _ in range(2))
    train(fabric, workload, first, 0, steps // 2)
    assembled(fabric, first)
    second.load_state_dict(through_disk(first.state_dict(), fabric.rank))
    train(fabric, workload, second, steps // 2, steps)
    train(fabric, workload, first, steps // 2, steps)
    wanted, *others = (method.state_dict()["model"] for method in (whole, first, second))
    return [all(torch.equal(wanted[name], other[name]) for name in wanted) for other in others]


def test_p3_goes_on_bit_for_bit_after_a_checkpoint_and_an_evaluation_and_every_node_has_the_model():
    assert on_nodes(node_odd_resumed, 3, 10) == [[True, True]] * 3


def node_that_loses_a_peer(fabric, killed):
    workload = open_workload("toy", WIDE)
    method = set_up(fabric, workload, "p3", {})
    train(fabric, workload, method, 0, 3)
    if fabric.rank == 1 and killed:
        os.kill(os.getpid(), signal.SIGKILL)
    if fabric.rank == 1:
        time.sleep(8)
    train(fabric, workload, method, 3, 6)


def test_a_peer_that_dies_in_training_is_named():
    with pytest.raises(RunFailed, match="worker 1 was killed by SIGKILL"):
        on_nodes(node_that_loses_a_peer, 3, True)


def test_a_peer_that_is_late_is_named():
    with pytest.raises(
        RunFailed, match=r"waiting for linear1.weight .*gave up after 2 s: rank 1 did not join, but is alive"
    ):
        on_nodes(node_that_loses_a_peer, 3, False, timeout_s=2.0)


def node_staged_against_direct(fabric, steps):
    """Gradients and values through memory beside the model, as a GPU needs it; here both are host memory."""
    workload = odd_workload()
    weights = []
    for memory in (DirectMemory, StagedMemory):
        with patch.object(served_model, "DirectMemory", memory):
            method = set_up(fabric, workload, "p3", {"slice_params": 50})
        train(fabric, workload, method, 0, steps)
        method.load_state_dict(method.state_dict())
        train(fabric, workload, method, steps, 2 * steps)
        weights.append(method.state_dict()["model"])
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_memory_beside_the_model_is_the_same_training_bit_for_bit():
    assert on_nodes(node_staged_against_direct, 3, 6) == [True] * 3


def node_orders(fabric):
    """By gradient or reply that this node sends, its place among messages: in the first step and in the next."""
    workload, send, orders = open_workload("toy", WIDE), fabric.transport.send, {}

    def noted(peer, messages):
        for message in messages:
            orders.setdefault(message.key, []).append(message.order)
        send(peer, messages)

    fabric.transport.send = noted
    method = set_up(fabric, workload, "p3", {"slice_params": 1_000})
    train(fabric, workload, method, 0, 2)
    method.drain()
    return orders


def test_replies_that_the_next_forward_pass_waits_for_go_before_the_next_gradients():
    for orders in on_nodes(node_orders, 2):
        assert {int(key) % 2 for key in orders} == {0, 1}
        first, second = zip(*orders.values(), strict=True)
        assert max(first) < min(second)
