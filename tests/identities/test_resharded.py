"""A checkpoint of 4 nodes goes on with 3, and with 4 again. Functions named `node_*` run on every node."""

import copy
import re
import tempfile
from pathlib import Path

import pytest
import torch
from published_steps import publish_states
from safetensors.torch import load_file, save_file

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.base import Reshards
from istbench.methods.cut_model import CutMethod
from istbench.node.checkpoint import Flat, SavedStates, read_rank
from istbench.node.checkpoint_steps import Totals, newest
from istbench.node.distributed_checkpoint import DistributedCheckpoint
from istbench.studies.conformance.training import assembled, open_workload, set_up, train

pytestmark = pytest.mark.processes

TOY = {"hidden": 26, "layers": 3, "batch_norm": True}
ROUND, STEPS = 3, 3
MOMENTUM, ADAM = {"lr": 0.05, "momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}
STEP = {**MOMENTUM, "local_steps": ROUND}
# Method, options, and steps before; in a round, or where nodes differ, the mean is rounded.
CASES = {
    "powersgd": ("ddp", {**MOMENTUM, "compress": "powersgd", "rank": 1, "least_compression": 1.0}, STEPS),
    "ddp in a round": ("ddp", {**MOMENTUM, "accumulate": 2}, STEPS),
    "zero": ("zero", {**ADAM, "weight_decay": 0.01, "weight_decay_of": "matrices"}, STEPS),
    "fsdp": ("fsdp", ADAM, STEPS),
    "parameter_server": ("parameter_server", {**MOMENTUM, "split_params": 40}, STEPS),
    "p3": ("p3", {**ADAM, "slice_params": 30}, STEPS),
    "local_sgd": ("local_sgd", STEP, STEPS),
    "diloco": ("diloco", {"local_steps": ROUND}, STEPS),
    "streaming_diloco": ("streaming_diloco", {"local_steps": 4, "delay": 2}, 4),
    "streaming_diloco in int8": ("streaming_diloco", {"local_steps": 4, "delay": 2, "send": "int8"}, 4),
    "noloco in a round": ("noloco", {"local_steps": ROUND}, STEPS),
    "sparseloco": ("sparseloco", {"local_steps": ROUND, "chunk": 30, "top": 4}, STEPS),
    "ist": ("ist", STEP, STEPS),
    "ist with adam": ("ist", {**ADAM, "local_steps": ROUND}, STEPS + 1),
    "ist, two owners": ("ist", {**STEP, "coverage": 2}, STEPS),
    "ist, one layer": ("ist", {**STEP, "deal": ("hidden2",)}, STEPS),
    "ist, warming": ("ist", {**STEP, "warmup_rounds": 2}, STEPS),
    "streaming_ist": ("streaming_ist", STEP, STEPS),
    "streaming_ist with adam": ("streaming_ist", {**ADAM, "local_steps": ROUND}, STEPS + 1),
}
# Cases whose optimizer has one state for all nodes, so that it comes back bit for bit.
WHOLE = {"ddp in a round", "zero", "fsdp", "parameter_server", "p3", "ist"}
# Without optimizer state, a group that has taken over is like a fresh one.
PLAIN = {
    "plain ddp": ("ddp", {"lr": 0.05}, STEPS),
    "plain zero": ("zero", {"lr": 0.05}, STEPS),
    "plain fsdp": ("fsdp", {"lr": 0.05}, STEPS),
    "plain p3": ("p3", {"lr": 0.05, "slice_params": 30}, STEPS),
    "plain local_sgd": ("local_sgd", {"lr": 0.05, "local_steps": ROUND}, STEPS),
    "plain diloco": (
        "diloco", {"optimizer": "sgd", "lr": 0.05, "outer_momentum": 0.0, "local_steps": ROUND}, STEPS,
    ),
    "plain ist": ("ist", {"lr": 0.05, "local_steps": ROUND}, STEPS),
    "plain streaming_ist": ("streaming_ist", {"lr": 0.05, "local_steps": ROUND}, STEPS),
}  # fmt: skip
EVERY = {**CASES, **PLAIN}
TOTALS = Totals(
    step=1, train_s=0, wall_s=0, bytes_sent=0, bytes_received=0, computing_s=(), evaluations=0,
    evaluations_sha256="",
)  # fmt: skip


def values(fabric, method):
    """On rank 0, the parameters of the assembled model."""
    model = assembled(fabric, method)
    return None if model is None else torch.cat([own.detach().flatten() for own in model.parameters()]).tolist()


def write(fabric, folder, methods, states):
    """Write a checkpoint of each case."""
    for name, own in methods.items():

        def shared(keys, own=own):
            return own.is_shared(keys[1:])

        publish_states(DistributedCheckpoint(Path(folder, name), fabric), TOTALS, {name: states[name]}, shared)


def taken_over(fabric, folder, workload):
    """The method of each case, with the state of a group of another size."""
    methods = {name: set_up(fabric, workload, *case[:2]) for name, case in EVERY.items()}
    for name, own in methods.items():

        def reshard(step, rank, name=name, own=own):
            return own.resharded(SavedStates(step, name), rank)

        _, state, _ = DistributedCheckpoint(Path(folder, name), fabric).read(reshard)
        own.load_state_dict(state)
    return methods


def node_trains(fabric, folder):
    """Train each case on 4 nodes; the assembled models."""
    found, methods, states, workload = {}, {}, {}, open_workload("toy", TOY)
    for name, (method, options, steps) in EVERY.items():
        own = methods[name] = set_up(fabric, workload, method, options)
        train(fabric, workload, own, 0, steps)
        states[name], found[name] = copy.deepcopy(own.state_dict()), values(fabric, own)
        model = assembled(fabric, own) if name in PLAIN else None
        if model is not None:
            save_file({key: value.clone() for key, value in model.state_dict().items()}, Path(folder, f"{name}.st"))
    write(fabric, f"{folder}/4", methods, states)
    return found


def node_takes_over(fabric, folder, before, after):
    """The assembled models, and what became of each case afterwards."""
    workload = open_workload("toy", TOY)
    methods = taken_over(fabric, f"{folder}/{before}", workload)
    states = {name: copy.deepcopy(own.state_dict()) for name, own in methods.items()}
    found = {name: values(fabric, own) for name, own in methods.items()}
    if after == "again":
        return [found, changed(fabric, folder, methods, states)]
    write(fabric, f"{folder}/{after}", methods, states)
    return [found, stepped(fabric, folder, methods, workload)]


def changed(fabric, folder, methods, states):
    """By case, the tensors of this node that a way by another group changed."""
    found = {}
    for name, own in methods.items():
        first = newest(Path(folder, "4", name))
        at_once = own.resharded(SavedStates(first, name), fabric.rank)
        own_before = read_rank(Path(folder, "4", name), 1, fabric.rank)[name]
        found[name] = [differing(states[name], at_once), differing(states[name], own_before)]
    return found


def differing(one, other):
    one, other = ({**flat.own, **flat.shared} for flat in map(Flat.of, (one, other)))
    equal = {key for key in one.keys() & other.keys() if torch.equal(one[key], other[key])}
    return sorted((one.keys() | other.keys()) - equal)


def stepped(fabric, folder, methods, workload):
    """By case, the models of a group that has taken over, and of a fresh one, after a round."""
    found, other = {}, open_workload("toy", TOY)
    for name, (method, options, steps) in PLAIN.items():
        own, saved = methods[name], load_file(Path(folder, f"{name}.st"))

        def rows(key, indices, saved=saved):
            return saved[key] if indices is None else saved[key][indices]

        other.initial_rows = lambda model, key, indices, seed, rows=rows: rows(key, indices)
        fresh = set_up(fabric, other, method, options)
        if hasattr(fresh, "_deals"):  # units are dealt by the number of the round
            fresh._round = own._round
            fresh._cut(rows)
        for one in (own, fresh):
            train(fabric, workload, one, steps, steps + ROUND)
        found[name] = [values(fabric, own), values(fabric, fresh)]
    return found


def test_other_numbers_of_nodes_take_over_and_change_no_bit():
    with tempfile.TemporaryDirectory() as folder:
        before = on_nodes(node_trains, 4, folder)[0]
        smaller, steps = on_nodes(node_takes_over, 3, folder, 4, 3)[0]
        larger = on_nodes(node_takes_over, 4, folder, 3, "again")
    for name in EVERY:
        for found in (smaller[name], larger[0][0][name]):
            assert found == (pytest.approx(before[name], abs=1e-6) if "in a round" in name else before[name]), name
        for _, of_rank in larger:
            at_once, since = of_rank[name]
            assert not at_once, name
            # A home shard has old values of what is in subnets.
            own = [key for key in since if not re.search("running|gradients|home", key)]
            assert not own or name not in WHOLE, name
    for name, (own, fresh) in steps.items():
        assert own == fresh, name


def test_a_method_with_tables_of_its_own_does_not():
    assert not issubclass(CutMethod, Reshards)
