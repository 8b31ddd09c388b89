"""Exact identities between methods, on real gloo processes. Functions named `node_*` run on every node."""

from itertools import pairwise

import pytest
import torch
from reference_ist import reference_ist

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel
from istbench.methods.ist import IndependentSubnetTraining
from istbench.node.digest import weights_sha256
from istbench.studies.conformance.training import (
    assembled,
    batches_of,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    train,
)

EXACT = 2e-5  # float32 sums in another order, over some tens of steps
PLAIN = {"hidden": 13, "layers": 2}
NORMALISED = {"hidden": 13, "layers": 3, "batch_norm": True}
OPTIMIZERS = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "nesterov, cosine": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "schedule": "cosine", "warmup": 0.1},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "clipped": {"lr": 0.1, "clip": 0.5, "weight_decay": 0.1, "weight_decay_of": "matrices"},
}


STEPS = 12
ROUNDS = 4
# Local steps of a round, and after how many steps to look: between rounds, and inside one.
LOOKS = {1: [5], 4: [8, 10], 5: [20], 18: [21]}


def node_all(fabric):
    """What each of these saw, by name."""
    return {
        "ddp": ddp_against_one_process(fabric),
        "local_sgd": local_sgd_against_ddp(fabric),
        "only exchanges": ist_without_training(fabric),
        "plain": ist_against_reference(fabric, PLAIN),
        "normalised": ist_against_reference(fabric, NORMALISED),
        "definition": local_sgd_against_reference(fabric, 4, 10),
        "seeds": of_one_seed(fabric),
    }


def node_alone(fabric):
    """The same on one node."""
    return {"plain training": ist_alone(fabric, 11), "seeds": of_one_seed(fabric)}


@pytest.fixture(scope="module", params=[2, 3])
def seen(request):
    """What rank 0 of 2 and 3 nodes saw."""
    return on_nodes(node_all, request.param)[0]


@pytest.fixture(scope="module")
def seen_alone():
    return on_nodes(node_alone, 1)[0]


def ddp_against_one_process(fabric):
    workload = open_workload("toy", PLAIN)
    differences = {}
    for name, options in OPTIMIZERS.items():
        method = set_up(fabric, workload, "ddp", options, steps=STEPS)
        train(fabric, workload, method, 0, STEPS)
        model = assembled(fabric, method)
        if model is not None:
            joined = plain_training(workload, DataParallel.Options(**options), STEPS, nodes=fabric.world_size)
            differences[name] = largest_difference(model, joined)
    return differences


def test_ddp_is_one_process_on_the_minibatches_joined(seen):
    differences = seen["ddp"]
    assert differences.keys() == OPTIMIZERS.keys()
    assert max(differences[name] for name in ("sgd", "momentum", "nesterov, cosine", "clipped")) < EXACT
    # Adam divides by the root of its second moment, which magnifies the last bits of small gradients.
    assert max(differences.values()) < 1e-4


def local_sgd_against_ddp(fabric):
    workload = open_workload("toy", PLAIN)
    models = []
    for name, options in (("local_sgd", {"local_steps": 1}), ("ddp", {})):
        method = set_up(fabric, workload, name, options)
        train(fabric, workload, method, 0, STEPS)
        models.append(assembled(fabric, method))
    return None if models[0] is None else largest_difference(*models)


def test_local_sgd_that_averages_after_every_step_is_ddp(seen):
    assert seen["local_sgd"] < EXACT


def local_sgd_against_reference(fabric, local_steps, steps):
    """Local steps apart, then the mean: written out with whole models."""
    workload = open_workload("toy", PLAIN)
    method = set_up(fabric, workload, "local_sgd", {"local_steps": local_steps, "momentum": 0.5})
    train(fabric, workload, method, 0, steps)
    model = assembled(fabric, method)
    mine = plain_training(workload, method.options, 0)
    optimizer = method.options.build(mine.parameters())
    batches = batches_of(fabric, workload, method)
    for step in range(steps):
        optimizer.zero_grad()
        workload.loss(mine, workload.train_batch(batches.indices(step), batches.generator(step))).backward()
        optimizer.step()
        if (step + 1) % local_steps == 0 or step + 1 == steps:
            with torch.no_grad():
                for parameter in mine.parameters():
                    fabric.all_reduce_mean(parameter)
    return None if model is None else largest_difference(model, mine)


def test_local_sgd_is_its_definition_also_in_the_middle_of_a_round(seen):
    assert seen["definition"] < EXACT


def ist_alone(fabric, steps):
    workload = open_workload("toy", NORMALISED)
    differences = []
    for options in OPTIMIZERS.values():
        plain = plain_training(workload, IndependentSubnetTraining.Options(**options), steps)
        for local_steps in (1, 3, 50):
            method = set_up(fabric, workload, "ist", {**options, "local_steps": local_steps}, steps=steps)
            train(fabric, workload, method, 0, steps)
            differences.append(largest_difference(assembled(fabric, method), plain))
    return max(differences)


def test_ist_on_one_node_is_plain_training_for_any_local_steps(seen_alone):
    assert seen_alone["plain training"] == 0


def ist_without_training(fabric):
    results = []
    for options in (PLAIN, NORMALISED, {**NORMALISED, "hidden": 16}):
        workload = open_workload("toy", options)
        method = set_up(fabric, workload, "ist", {"local_steps": 0})
        before = assembled(fabric, method)
        train(fabric, workload, method, 0, ROUNDS)
        after = assembled(fabric, method)
        if before is not None:
            untouched = plain_training(workload, method.options, 0)
            same = all(torch.equal(a, b) for a, b in zip(after.parameters(), untouched.parameters(), strict=True))
            results.append(same and weights_sha256(before) == weights_sha256(after))
    return results


def test_ist_that_only_exchanges_leaves_the_model_unchanged_bit_for_bit(seen):
    assert seen["only exchanges"] == [True] * 3


def ist_against_reference(fabric, options):
    workload = open_workload("toy", options)
    differences = []
    for local_steps, looks in LOOKS.items():
        method = set_up(fabric, workload, "ist", {"local_steps": local_steps, "momentum": 0.5}, seed=5)
        for first, steps in pairwise([0, *looks]):
            train(fabric, workload, method, first, steps, seed=5)
            model = assembled(fabric, method)
            if model is not None:
                wanted = reference_ist(
                    workload,
                    method.options,
                    nodes=fabric.world_size,
                    local_steps=local_steps,
                    steps=steps,
                    seed=5,
                )
                differences.append(largest_difference(model, wanted))
    return differences


@pytest.mark.parametrize("network", ["plain", "normalised"])
def test_ist_is_its_definition_on_whole_rounds_open_rounds_and_beyond_an_epoch(seen, network):
    """An epoch is 16 steps at 2 nodes, 10 at 3: rounds cross epochs, or outlast them, and are still exchanged."""
    differences = seen[network]
    assert len(differences) == sum(map(len, LOOKS.values()))
    assert max(differences) < EXACT


def node_ist_shares(fabric):
    workload = open_workload("toy", {"hidden": 64, "layers": 3})
    method = set_up(fabric, workload, "ist", {})
    train(fabric, workload, method, 0, 5)
    state = method.state_dict()
    held = sum(own.numel() for own in state["subnet"].values())
    at_home = sum(shard.numel() for shards in state["home"].values() for shard in shards.values())
    full = sum(p.numel() for p in workload.build_model().parameters())
    return [held, at_home, full]


def test_an_ist_node_holds_its_subnet_and_an_nth_of_the_rest():
    for held, at_home, full in on_nodes(node_ist_shares, 4):
        assert held + at_home < 0.4 * full


def of_one_seed(fabric):
    workload = open_workload("toy", PLAIN)
    hashes = []
    for name in ("ddp", "local_sgd", "ist"):
        model = assembled(fabric, set_up(fabric, workload, name, {}, seed=7))
        hashes.append(model and [float(p.sum()) for p in model.parameters()])
    return hashes


def test_one_seed_is_one_model_for_every_method_and_number_of_nodes(seen, seen_alone):
    assert seen["seeds"] == seen_alone["seeds"]
    assert seen["seeds"][0] == seen["seeds"][1] == seen["seeds"][2]
