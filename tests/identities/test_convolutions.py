"""IST inside convolutions and attention, on real gloo processes: its definition, plain training, exact moves."""

from itertools import pairwise

import pytest
import torch
from attention_network import TinySequences
from image_networks import PIXELS, TinyImages
from reference_ist import reference_ist

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.digest import weights_sha256
from istbench.node.registry import build_method
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    plain_training,
    set_up,
    through_disk,
    train,
)

EXACT = 1e-8  # float64 sums in another order, through BatchNorm of six samples
MOMENTUM = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}
OPTIMIZERS = {
    "sgd": {"lr": 0.05},
    "carry": MOMENTUM,
    "reset": {**MOMENTUM, "optimizer_state": "reset"},
}
LOCAL_STEPS, STEPS = 2, 5
STOPS = (LOCAL_STEPS, LOCAL_STEPS + 1)


def node_ist_of_images(fabric):
    """By network, what rank 0 saw."""
    seen = {images: seen_of(fabric, TinyImages(images)) for images in PIXELS}
    seen["attention"] = seen_of(fabric, TinySequences())
    return {**seen, "fewer heads than nodes": seen_of(fabric, TinySequences(heads=2))}


def seen_of(fabric, workload):
    sent, differences, moved = {}, [], []
    for name, options in OPTIMIZERS.items():
        before = fabric.traffic["training"].sent
        model, states = trained(fabric, workload, options)
        sent[name] = fabric.traffic["training"].sent - before
        if model is not None:
            options = build_method("ist", options, workload=workload).options
            differences.append(largest_difference(model, wanted_of(workload, options, fabric.world_size)))
            untrained = plain_training(workload, options, 0)
            moved.append(largest_difference(model, untrained))
    # The last, from a round's end, where the optimizer's state was reset, and from inside a round.
    resumed = [resumed_from(fabric, workload, OPTIMIZERS["reset"], stop, states[stop]) for stop in STOPS]
    exchanged, _ = trained(fabric, workload, {"local_steps": 0})
    if model is None:
        return None
    return {
        "differences": differences,
        "moved": moved,
        "sent": sent,
        "resumed exactly": all(weights_sha256(again) == weights_sha256(model) for again in resumed),
        "exchanged exactly": weights_sha256(exchanged) == weights_sha256(untrained)
        or (
            fabric.world_size == 1  # where the statistics of the passes stay
            and all(map(torch.equal, exchanged.parameters(), untrained.parameters()))
        ),
    }


def trained(fabric, workload, options):
    """The model on rank 0 after `STEPS` steps, and this node's checkpoints after each of `STOPS`, from disk."""
    method = set_up(fabric, workload, "ist", {"local_steps": LOCAL_STEPS, **options})
    states = {}
    for first, last in pairwise((0, *STOPS, STEPS)):
        train(fabric, workload, method, first, last)
        if last in STOPS:
            states[last] = through_disk(method.state_dict(), fabric.rank)
    return assembled(fabric, method), states


def resumed_from(fabric, workload, options, stop, state):
    """The model on rank 0 after `STEPS` steps, of which those until `stop` led to `state`."""
    method = set_up(fabric, workload, "ist", {"local_steps": LOCAL_STEPS, **options})
    method.load_state_dict(state)
    train(fabric, workload, method, stop, STEPS)
    return assembled(fabric, method)


def wanted_of(workload, options, nodes):
    if nodes == 1:
        return plain_training(workload, options, STEPS)
    return reference_ist(workload, options, nodes=nodes, local_steps=LOCAL_STEPS, steps=STEPS, seed=0)


@pytest.mark.parametrize("nodes", [1, 3])
def test_ist_of_channels_and_heads_is_its_definition(nodes):
    for name, seen in on_nodes(node_ist_of_images, nodes)[0].items():
        assert len(seen["differences"]) == len(OPTIMIZERS)
        assert max(seen["differences"]) <= (EXACT if nodes > 1 else 0)
        assert min(seen["moved"]) > 1e-3
        assert seen["resumed exactly"]
        assert seen["exchanged exactly"]
        if name in PIXELS:  # a momentum beside every value, or none; an all-reduce's bytes are counted to the byte
            assert seen["sent"]["carry"] == pytest.approx(2 * seen["sent"]["reset"], abs=STEPS)
        elif nodes > 1:  # more than a tenth of the values is shared, and has no momentum beside it
            assert seen["sent"]["reset"] < seen["sent"]["carry"] < 2 * seen["sent"]["reset"] - STEPS
        assert seen["sent"]["reset"] == seen["sent"]["sgd"]
        assert (seen["sent"]["sgd"] > 0) == (nodes > 1)
