"""SparseLoCo against DiLoCo and against its definition, on real processes. `node_*` run on every node."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.sparseloco import Chunks
from istbench.node.digest import blocks_of, sha256_of
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
NODES = 3
LOCAL_STEPS, STEPS = 4, 14  # ends inside a round
NORMALISED = {"hidden": 13, "layers": 2, "batch_norm": True}
PLAIN = {"hidden": 13, "layers": 2}
SPARSE = {"local_steps": LOCAL_STEPS, "chunk": 50, "top": 7, "feedback": 0.9, "optimizer": "sgd", "lr": 0.1}


def node_all(fabric):
    return {
        "diloco": node_that_sends_all(fabric, "sgd"),
        "definition": {mean: against_definition(fabric, mean) for mean in ("senders", "all")},
        "weights": weights_of_rounds(fabric),
    }


@pytest.fixture(scope="module")
def seen():
    """What each node saw."""
    return on_nodes(node_all, NODES)


def node_that_sends_all(fabric, optimizer):
    """The largest differences from diloco of parameters and buffers, at the end of a round and inside one."""
    workload, differences = open_workload("toy", NORMALISED), []
    shared = {
        "local_steps": LOCAL_STEPS, "optimizer": optimizer, "lr": 0.01, "outer_lr": 0.7, "outer_momentum": 0.0,
    }  # fmt: skip
    both = [
        set_up(fabric, workload, name, {**shared, **extra})
        for name, extra in (("sparseloco", {"chunk": 30, "top": 30}), ("diloco", {}))
    ]
    for first, last in ((0, 2 * LOCAL_STEPS), (2 * LOCAL_STEPS, STEPS)):
        for method in both:
            train(fabric, workload, method, first, last)
        models = [assembled(fabric, method) for method in both]
        if models[0] is not None:
            differences.append(largest_difference(*models))
            buffers = zip(models[0].buffers(), models[1].buffers(), strict=True)
            differences += [float((a.double() - b.double()).abs().max()) for a, b in buffers]
    return differences


def test_with_all_entries_sent_it_is_diloco(seen):
    assert len(seen[0]["diloco"]) > 2
    assert max(seen[0]["diloco"]) < EXACT


def test_with_all_entries_sent_by_two_nodes_it_is_diloco_bit_for_bit():
    """A sum of two is the same in any order. So Adam cannot magnify a last bit."""
    assert set(on_nodes(node_that_sends_all, 2, "adamw")[0]) == {0.0}


def against_definition(fabric, mean):
    """The largest difference from a reference with whole tensors, also of what is kept."""
    workload = open_workload("toy", PLAIN)
    method = set_up(fabric, workload, "sparseloco", {**SPARSE, "mean": mean})
    train(fabric, workload, method, 0, STEPS)
    model = assembled(fabric, method)
    mine = plain_training(workload, method.options, 0)
    optimizer = method.options.build(mine.parameters())
    batches = batches_of(fabric, workload, method)
    start = parameters_to_vector(mine.parameters()).detach()
    kept = torch.zeros_like(start)
    chunks = Chunks(len(start), SPARSE["chunk"], SPARSE["top"])
    for step in range(STEPS):
        optimizer.zero_grad()
        workload.loss(mine, workload.train_batch(batches.indices(step), batches.generator(step))).backward()
        optimizer.step()
        if (step + 1) % LOCAL_STEPS == 0 or step + 1 == STEPS:
            left = kept  # what the method keeps: it has not closed the last round
            kept = SPARSE["feedback"] * kept + start - parameters_to_vector(mine.parameters()).detach()
            sent = torch.zeros_like(start)
            sent[chunks.largest(kept)] = 1
            total, senders = kept * sent, sent.clone()
            kept = kept - total
            fabric.all_reduce_sum(total)
            fabric.all_reduce_sum(senders)
            divisor = senders.clamp(min=1) if mean == "senders" else NODES
            start = start - total / divisor
            vector_to_parameters(start.clone(), mine.parameters())
    return {
        "kept": float((torch.cat([*method.state_dict()["kept"].values()]) - left).abs().max()),
        "size": float(left.abs().max()),
        "model": None if model is None else largest_difference(model, mine),
        "few": chunks.sent < len(start) / 5,
    }


@pytest.mark.parametrize("mean", ["senders", "all"])
def test_it_is_its_definition_also_in_the_middle_of_a_round(seen, mean):
    assert seen[0]["definition"][mean]["model"] < EXACT
    for of_node in (node["definition"][mean] for node in seen):
        assert of_node["few"]
        assert of_node["kept"] < EXACT
        assert of_node["size"] > 100 * EXACT


def weights_of_rounds(fabric):
    """By round, a digest of this node's weights, and of what it keeps."""
    workload, found = open_workload("toy", NORMALISED), []
    method = set_up(fabric, workload, "sparseloco", {**SPARSE, "outer_momentum": 0.5})
    for first in range(0, 3 * LOCAL_STEPS, LOCAL_STEPS):
        train(fabric, workload, method, first, first + LOCAL_STEPS)
        state = method.state_dict()
        found.append([sha256_of(state["model"], blocks_of(state["model"])), state["kept"]["0"].tolist()])
    return found


def test_all_nodes_have_the_same_weights_bit_for_bit_and_keep_different_changes(seen):
    for by_node in zip(*(of_node["weights"] for of_node in seen), strict=True):
        assert len({weights for weights, _ in by_node}) == 1
        assert len({tuple(kept) for _, kept in by_node}) == NODES
