"""IST inside convolutions, on real gloo processes: its definition, plain training on one node, exact exchanges."""

import pytest
from image_networks import PIXELS, TinyImages
from reference_ist import reference_ist

from istbench.conformance.processes import on_nodes
from istbench.conformance.training import (
    assembled,
    largest_difference,
    plain_training,
    set_up,
    through_disk,
    train,
)
from istbench.node.digest import weights_sha256

EXACT = 1e-8  # float64 sums in another order, through BatchNorm of six samples
MOMENTUM = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}
OPTIMIZERS = {
    "sgd": {"lr": 0.05},
    "carry": MOMENTUM,
    "reset": {**MOMENTUM, "optimizer_state": "reset"},
}
LOCAL_STEPS, STEPS = 2, 6


def node_ist_of_images(fabric):
    """By network, what rank 0 saw."""
    return {images: seen_of(fabric, TinyImages(images)) for images in PIXELS}


def seen_of(fabric, workload):
    sent, differences, moved = {}, [], []
    for name, options in OPTIMIZERS.items():
        before = fabric.traffic["training"].sent
        model = trained(fabric, workload, options)
        sent[name] = fabric.traffic["training"].sent - before
        if model is not None:
            options = set_up(fabric, workload, "ist", options).options
            differences.append(largest_difference(model, wanted_of(workload, options, fabric.world_size)))
            moved.append(largest_difference(model, plain_training(workload, options, 0)))
    # Stopped at a round's end, where the optimizer's state was reset, and inside a round.
    resumed = [trained(fabric, workload, OPTIMIZERS["reset"], stop) for stop in (LOCAL_STEPS, LOCAL_STEPS + 1)]
    exchanged = trained(fabric, workload, {"local_steps": 0})
    if model is None:
        return None
    return {
        "differences": differences,
        "moved": moved,
        "sent": sent,
        "resumed exactly": all(weights_sha256(again) == weights_sha256(model) for again in resumed),
        "exchanged exactly": weights_sha256(exchanged) == weights_sha256(plain_training(workload, options, 0)),
    }


def trained(fabric, workload, options, stop=None):
    """The model on rank 0 after `STEPS` steps, stopped and resumed from disk after `stop`."""
    options = {"local_steps": LOCAL_STEPS, **options}
    method = set_up(fabric, workload, "ist", options)
    if stop is not None:
        train(fabric, workload, method, 0, stop)
        state = through_disk(method.state_dict(), fabric.rank)
        method = set_up(fabric, workload, "ist", options)
        method.load_state_dict(state)
    train(fabric, workload, method, stop or 0, STEPS)
    return assembled(fabric, method)


def wanted_of(workload, options, nodes):
    if nodes == 1:
        return plain_training(workload, options, STEPS)
    return reference_ist(workload, options, nodes=nodes, local_steps=LOCAL_STEPS, steps=STEPS, seed=0)


@pytest.mark.parametrize("nodes", [1, 3])
def test_ist_of_convolutions_is_its_definition(nodes):
    for seen in on_nodes(node_ist_of_images, nodes)[0].values():
        assert len(seen["differences"]) == len(OPTIMIZERS)
        assert max(seen["differences"]) <= (EXACT if nodes > 1 else 0)
        assert min(seen["moved"]) > 1e-3
        assert seen["resumed exactly"]
        assert seen["exchanged exactly"]
        # A momentum beside every value, or none; an all-reduce's bytes are counted to the byte.
        assert seen["sent"]["carry"] == pytest.approx(2 * seen["sent"]["reset"], abs=STEPS)
        assert seen["sent"]["reset"] == seen["sent"]["sgd"]
        assert (seen["sent"]["sgd"] > 0) == (nodes > 1)
