"""A model that no node holds: evaluated, digested and saved as the assembled one is. `node_*` run on every node."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.checkpoint import seed_random_state
from istbench.node.digest import sha256_of, weights_sha256
from istbench.node.evaluate import evaluate
from istbench.node.full_model import Evaluator, full_model
from istbench.node.weights_file import save_weights
from istbench.studies.conformance.training import assembled, open_workload, set_up, train

pytestmark = pytest.mark.processes

OPTIONS = {"hidden": 11, "block": 16, "points": 1_500, "features": 61, "labels": 103}


def node_streams(fabric):
    workload = open_workload("amazon670k", OPTIONS)
    workload.batch_size = 32
    method = set_up(fabric, workload, "ist", {"local_steps": 3, "lr": 0.01})
    seen = []
    for first in (0, 4):  # at a round's end after the first, inside one after the second
        train(fabric, workload, method, first, first + 4)
        model = assembled(fabric, method)
        before = {purpose: (traffic.sent, traffic.received) for purpose, traffic in fabric.traffic.items()}
        method.assemble = None  # as of a method that cannot
        with full_model(method, workload, fabric, seed=0) as full:
            if full is not None:
                tensors = {name: tensor.device.type for name, tensor in full.tensors.items()}
                found, digest = full.metrics(), sha256_of(full.tensors, full.block)
                saved = saved_tensors(full)
        del method.assemble
        after = {purpose: (traffic.sent, traffic.received) for purpose, traffic in fabric.traffic.items()}
        changed = [purpose for purpose in before if before[purpose] != after[purpose]]
        assert changed == (["assemble"] if fabric.world_size > 1 else [])
        if model is not None:
            assert set(tensors.values()) == {"meta"}
            assert list(tensors) == list(model.state_dict())
            assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())
            same = found == evaluate(model, workload, fabric.device)
            seen.append([same, digest == weights_sha256(model), full.assembled_s > 0, len(saved)])
    return seen


def saved_tensors(full):
    with tempfile.TemporaryDirectory() as folder:
        save_weights(Path(folder), full.tensors, full.block, "", most=3_000)
        return {
            name: value for path in Path(folder).glob("*.safetensors") for name, value in load_file(path).items()
        }


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_blocks_are_evaluated_digested_and_saved_as_the_assembled_model(nodes):
    assert on_nodes(node_streams, nodes)[0] == [[True, True, True, 4]] * 2


def node_evaluates_its_part(fabric):
    """The metrics by all nodes, beside those of the assembled model. Seven labels leave a node fewer than five."""
    seen = []
    for method, options, labels in (
        ("model_parallel", {}, 103),
        ("dslide", {"target_active": 20}, 103),
        ("model_parallel", {}, 7),
        ("model_parallel", {}, 3),
    ):
        workload = open_workload("amazon670k", {**OPTIONS, "labels": labels})
        workload.batch_size = 32
        trained = set_up(fabric, workload, method, {"lr": 0.01, **options})
        train(fabric, workload, trained, 0, 4)
        model = assembled(fabric, trained)
        training = fabric.traffic["training"].sent
        trained.blocks = lambda: pytest.fail  # no node sends a block
        with full_model(trained, workload, fabric, seed=0) as full:
            if full is not None:
                seen.append([full.metrics(), evaluate(model, workload, fabric.device)])
        assert fabric.traffic["training"].sent == training
    return seen


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_nodes_evaluate_the_parts_of_a_model_as_one_node_evaluates_all_of_it(nodes):
    seen = on_nodes(node_evaluates_its_part, nodes)[0]
    assert len(seen) == 4
    for found, wanted in seen:
        assert found == pytest.approx(wanted, rel=1e-5)
        assert 0 < wanted["precision@1"] < 1


def node_assembles(fabric):
    found = Counter()
    for method, options, streams in (("ddp", {}, True), ("ist", {"batch_norm": True}, True), ("ist", {}, False)):
        workload = open_workload("toy", options)
        workload.evaluates_blocks = streams
        trained = set_up(fabric, workload, method, {})
        with full_model(trained, workload, fabric, seed=0) as full:
            if full is not None:
                assert not any(tensor.is_meta for tensor in full.tensors.values())
                found[method] += full.metrics()["accuracy"] >= 0
    return found


def test_what_cannot_come_in_blocks_is_assembled():
    assert on_nodes(node_assembles, 2)[0] == {"ddp": 1, "ist": 2}


def draws():
    """A random number of each generator that a user's functions may use."""
    return [float(torch.rand(())), float(np.random.rand()), random.random()]


def node_evaluates_at_random(fabric):
    """Whether training draws the same numbers without and with evaluations; the draws of the evaluations."""
    workload, drawn = open_workload("toy", {}), []
    metrics = workload.evaluate

    def evaluate_at_random(model, batches):
        drawn.append(draws())
        return metrics(model, batches)

    workload.evaluate = evaluate_at_random
    config = RunConfig(
        workload="toy", method="ddp", nodes=fabric.world_size, seed=0, workload_options={}, method_options={},
        batch_size=16, steps=8, eval_every=Interval(steps=4), device="cpu", threads=1,
    )  # fmt: skip
    evaluator = Evaluator(config, set_up(fabric, workload, "ddp", {}), workload, fabric, 1)
    seed_random_state(7)
    wanted = draws()
    seed_random_state(7)
    evaluator.evaluate(0)
    evaluator.evaluate(4)
    return [draws() == wanted, drawn]


def test_evaluations_do_not_change_the_random_numbers_of_training():
    (same, drawn), (also_same, none) = on_nodes(node_evaluates_at_random, 2)
    assert (same, also_same, none) == (True, True, [])
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
