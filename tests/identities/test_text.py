"""Exact identities of the methods that train `text`, whose transformer has tied weights, on two real processes."""

import pytest
from reference_ist import reference_ist

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.digest import weights_sha256
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    set_up,
    through_disk,
    train,
)

EXACT = 2e-5  # float32 sums in another order, over some steps
MODEL = {"width": 16, "layers": 2, "heads": 4, "context": 8, "bias": True}
STEPS, STOP, NODES = 6, 3, 2
PLAIN = {
    "optimizer": "sgd",
    "beta2": 0.999,
    "lr": 0.5,
    "schedule": "constant",
    "cosine_end": 0,
    "warmup": 0,
    "clip": 0,
}
LIKE_DDP = {
    "zero": ("zero", {}),
    "fsdp, by block": ("fsdp", {"group_params": 1}),
    "p3": ("p3", {"slice_params": 500}),
    "parameter_server": ("parameter_server", {}),
    "local_sgd": ("local_sgd", {"local_steps": 1}),
}
CUT = {"ist": {"local_steps": 2}, "streaming_ist": {"local_steps": 6, "flight_steps": 2}}


def plain(method):
    """`PLAIN`, without the option that `method` lacks."""
    served = method in ("p3", "parameter_server")
    return {name: value for name, value in PLAIN.items() if not (served and name == "clip")}


def node_all(fabric):
    """What each of these saw, by name."""
    return {"like ddp": like_ddp(fabric), "ist": ist_against_reference(fabric), "resumed": resumed(fabric)}


def like_ddp(fabric):
    workload = open_workload("text", MODEL)
    reference = set_up(fabric, workload, "ddp", PLAIN, steps=STEPS)
    train(fabric, workload, reference, 0, STEPS)
    wanted, differences = assembled(fabric, reference), {}
    for label, (name, own) in LIKE_DDP.items():
        method = set_up(fabric, workload, name, {**plain(name), **own}, steps=STEPS)
        train(fabric, workload, method, 0, STEPS)
        model = assembled(fabric, method)
        if model is not None:
            differences[label] = largest_difference(model, wanted)
    return differences


def ist_against_reference(fabric):
    """A subnet of half the units doubles their sum, as a projection of twice the weights would; or leaves it."""
    workload, differences = open_workload("text", MODEL), {}
    for scale in ("auto", "off"):
        options = {**PLAIN, "local_steps": 2, "weight_decay": 0, "weight_decay_of": "all", "scale": scale}
        method = set_up(fabric, workload, "ist", options, seed=5, steps=STEPS)
        train(fabric, workload, method, 0, STEPS, seed=5)
        model = assembled(fabric, method)
        if model is not None:
            wanted = reference_ist(workload, method.options, nodes=NODES, local_steps=2, steps=STEPS, seed=5)
            differences[scale] = largest_difference(model, wanted)
            differences[f"apart, {scale}"] = model.blocks[0].perceptron.output.weight.square().sum().item()
    return differences


def resumed(fabric):
    """By method that cuts the model, with nanoGPT's settings: whether a resumed run is the run, bit for bit."""
    workload, same = open_workload("text", {**MODEL, "dropout": 0.0}), {}
    for name, options in CUT.items():
        whole = set_up(fabric, workload, name, options, steps=STEPS)
        train(fabric, workload, whole, 0, STOP)
        state = through_disk(whole.state_dict(), fabric.rank)
        train(fabric, workload, whole, STOP, STEPS)
        again = set_up(fabric, workload, name, options, steps=STEPS)
        again.load_state_dict(state)
        train(fabric, workload, again, STOP, STEPS)
        models = [assembled(fabric, method) for method in (whole, again)]
        if models[0] is not None:
            same[name] = weights_sha256(models[0]) == weights_sha256(models[1])
    return same


@pytest.fixture(scope="module")
def seen():
    return on_nodes(node_all, NODES)[0]


def test_other_data_parallel_methods_train_tied_weights_as_ddp_does(seen):
    assert seen["like ddp"].keys() == LIKE_DDP.keys()
    assert max(seen["like ddp"].values()) < EXACT, seen


def test_ist_over_heads_and_hidden_units_is_its_definition(seen):
    assert max(seen["ist"]["auto"], seen["ist"]["off"]) < EXACT
    assert seen["ist"]["apart, auto"] != seen["ist"]["apart, off"]


def test_subnets_of_a_transformer_resume_exactly(seen):
    assert seen["resumed"] == dict.fromkeys(CUT, True)
