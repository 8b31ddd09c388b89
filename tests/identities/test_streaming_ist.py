"""Streaming IST on gloo processes: its definition, after every step. Functions named `node_*` run on every node."""

from dataclasses import replace
from pathlib import Path

import pytest
from image_networks import PIXELS, TinyImages
from reference_streaming import StreamingReference

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.digest import weights_sha256
from istbench.studies.conformance.of_methods import (
    CheckedMethod,
    bytes_sent_are_bytes_received,
    reads_in_blocks,
    rounds_have_the_declared_length,
)
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    through_disk,
    train,
)
from istbench.workloads.toy import Toy, ToyOptions

EXACT = 2e-5  # float32 sums in another order
PLAIN = {"hidden": 13, "layers": 2}
NORMALISED = {"hidden": 13, "layers": 3, "batch_norm": True}
MOMENTUM = {"momentum": 0.5, "weight_decay": 0.01}
EXTREME = {"hidden": 13, "features": 50, "labels": 61, "points": 1200}
CASES = {
    "plain": (("toy", PLAIN), MOMENTUM),
    "long flights": (("toy", NORMALISED), {**MOMENTUM, "local_steps": 5, "flight_steps": 2}),
    "reset": (("toy", NORMALISED), {**MOMENTUM, "local_steps": 5, "optimizer_state": "reset"}),
    "adam": (("toy", {**PLAIN, "layers": 1}), {"optimizer": "adam", "lr": 0.01, "local_steps": 2}),
    "scaled sums": (("scaled toy", PLAIN), MOMENTUM),
    "labels": (("amazon670k", EXTREME), {"local_steps": 3}),
    "vgg12": (("vgg12", None), {"lr": 0.02, "momentum": 0.9, "local_steps": 4}),
    "resnet18": (("resnet18", None), {"lr": 0.02, "momentum": 0.9, "local_steps": 2}),
}
ALONE = 5  # cases that one node trains too
STEPS, STOPS = 9, (2, 5)
FEW_STEPS, FEW_STOPS = 5, (3,)  # of networks of many tensors


class ScaledToy(Toy):
    """Hidden layers without normalisation, whose sums a subnet scales."""

    def neuron_groups(self, model):
        groups = super().neuron_groups(model)
        return [
            replace(group, sums=tuple(slot.tensor for slot in group.slots if slot.dim == 1)) for group in groups
        ]


def workload_of(name, options):
    if name == "scaled toy":
        workload = ScaledToy(ToyOptions(**options))
        workload.open(workload.prepare(None, Path(), lambda *_: None))
        return workload
    return TinyImages(name) if options is None else open_workload(name, options)


def node_streams(fabric, names):
    """By case, what rank 0 saw; and checks that fail where they do not hold."""
    rounds_have_the_declared_length(fabric, CheckedMethod("streaming_ist"))
    bytes_sent_are_bytes_received(fabric, CheckedMethod("streaming_ist"))
    return {name: seen_of(fabric, workload_of(*CASES[name][0]), CASES[name][1]) for name in names}


def seen_of(fabric, workload, options):
    steps, stops = (FEW_STEPS, FEW_STOPS) if isinstance(workload, TinyImages) else (STEPS, STOPS)

    def start(**more):
        return set_up(fabric, workload, "streaming_ist", {**options, **more}, seed=5)

    method = start()
    reference = StreamingReference(workload, method.options, nodes=fabric.world_size, seed=5)
    differences, states = [], {}
    for step in range(steps):
        train(fabric, workload, method, step, step + 1, seed=5)
        if step + 1 in stops:
            states[step + 1] = through_disk(method.state_dict(), fabric.rank)
        model = assembled(fabric, method)
        if model is not None:
            reference.train(step, step + 1)
            differences.append(largest_difference(model, reference.model))
    in_blocks = reads_in_blocks(fabric, method, workload, model)
    ends = [model and weights_sha256(model)]
    ordinary = set_up(fabric, workload, "ist", {"local_steps": 0})
    flying = sum(buffer.numel() for buffer in method.state_dict()["flying"].get("arrived", {}).values())
    subnets = [sum(own.numel() for own in each.state_dict()["subnet"].values()) for each in (method, ordinary)]
    undisturbed = start()
    train(fabric, workload, undisturbed, 0, steps, seed=5)
    ends.append(digest(fabric, undisturbed))
    for stop in stops:
        resumed = start()
        resumed.load_state_dict(states[stop])
        train(fabric, workload, resumed, stop, steps, seed=5)
        ends.append(digest(fabric, resumed))
    still = start(lr=0.0)
    unchanged = [digest(fabric, still)]
    for step in range(FEW_STEPS):
        train(fabric, workload, still, step, step + 1, seed=5)
        unchanged.append(digest(fabric, still))
    still.close_round()
    unchanged.append(digest(fabric, still))
    return {
        "differences": differences,
        "in blocks": in_blocks,
        "in flight": any(state["flying"] for state in states.values()),
        "resumed exactly": len(set(ends)) == 1,
        "no larger": subnets[0] == subnets[1] and flying < subnets[1],
        "unchanged": len(set(unchanged)) == 1,
    }


def digest(fabric, method):
    model = assembled(fabric, method)
    return model and weights_sha256(model)


@pytest.mark.parametrize(("nodes", "images"), [(2, True), (3, False)])
def test_streaming_is_its_definition_after_every_step_and_resumes_with_units_in_flight(nodes, images):
    names = [name for name in CASES if (name in PIXELS) is images]
    seen = on_nodes(node_streams, nodes, names)[0]
    assert list(seen) == names
    for name, case in seen.items():
        differences = case.pop("differences")
        assert len(differences) >= FEW_STEPS, name
        assert max(differences) < EXACT, name
        assert all(case.values()), (name, case)


def node_alone(fabric):
    differences = []
    for workload, options in list(CASES.values())[:ALONE]:
        workload = workload_of(*workload)
        method = set_up(fabric, workload, "streaming_ist", options)
        train(fabric, workload, method, 0, STEPS)
        method.close_round()
        plain = plain_training(workload, method.options, STEPS)
        differences.append(largest_difference(assembled(fabric, method), plain))
    return differences


def test_streaming_on_one_node_is_plain_training():
    assert on_nodes(node_alone, 1)[0] == [0] * ALONE
