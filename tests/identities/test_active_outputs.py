"""Active outputs of a wide softmax: all of them are the dense model. Functions named `node_*` run on every node."""

import functools
from unittest.mock import patch

import pytest

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.optimizer import OptimizerOptions
from istbench.methods.slide.hashing import Tables
from istbench.node.digest import weights_sha256
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    through_disk,
    train,
)

EXACT = 2e-5  # float32 sums in another order, over some steps
STEPS = 6
UNEVEN = {"hidden": 9, "features": 40, "labels": 23, "points": 400, "block": 5}
ALL = {"target_active": 23}
SGD = {"optimizer": "sgd", "lr": 0.5}
ADAM = {"optimizer": "adam", "lr": 0.01, "schedule": "cosine", "warmup": 0.2}
DENSE = {
    "sampled_softmax, sgd": ("sampled_softmax", SGD, {}),
    "sampled_softmax, adam": ("sampled_softmax", ADAM, {"lazy": False}),
    "dslide, sgd": ("dslide", SGD, {}),
    "dslide, adam": ("dslide", ADAM, {"lazy": False, "family": "dwta"}),
}
FEW = {"target_active": 8, "optimizer": "adam", "lr": 0.01, "lazy": True}
HASHED = {"rebuild_first": 2, "rebuild_growth": 0.0}
SPARSE = {
    "sampled_softmax": ("sampled_softmax", FEW),
    "dslide": ("dslide", {**FEW, **HASHED}),
}
# In the first step, and at every second one; from step 3 on at the fourth and the sixth.
BUILDS = {"sampled_softmax": [0, 0], "dslide": [4, 2]}


def small():
    workload = open_workload("amazon670k", UNEVEN)
    workload.batch_size = 32
    return workload


def node_all_active(fabric):
    """How far each method is from one process with the dense model, and the first and last loss."""
    workload, seen = small(), {}
    for name, (method, options, own) in DENSE.items():
        built = set_up(fabric, workload, method, {**options, **ALL, **own}, steps=STEPS)
        losses = train(fabric, workload, built, 0, STEPS)
        model = assembled(fabric, built)
        if model is not None:
            wanted = plain_training(workload, OptimizerOptions(**options), STEPS)
            seen[name] = [largest_difference(model, wanted), losses[0], losses[-1]]
    return seen


def node_both(fabric):
    """The same, and on an odd number of nodes what `node_few_active` saw."""
    return [node_all_active(fabric), node_few_active(fabric) if fabric.world_size % 2 else None]


seen_by_nodes = functools.cache(functools.partial(on_nodes, node_both))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_all_outputs_active_are_the_dense_model(nodes):
    seen, _ = seen_by_nodes(nodes)[0]
    assert seen.keys() == DENSE.keys()
    for name, (difference, first, last) in seen.items():
        assert difference < EXACT, (name, difference)
        assert last < first, name


def node_few_active(fabric):
    """Of each method the digest and the losses of a run with few active outputs, and of that run resumed.

    And how often tables were built in either, and the figures of the resumed run and of one that trains no more.
    """
    workload, seen = small(), {}
    for name, (method, options) in SPARSE.items():
        with patch.object(Tables, "build") as built:
            whole, first, second, idle = (set_up(fabric, workload, method, options, steps=STEPS) for _ in range(4))
        assert not built.called, "tables are built before training, which no clock counts"
        before = fabric.traffic["training"].sent
        with patch.object(Tables, "build", side_effect=Tables.build) as built:
            losses = train(fabric, workload, whole, 0, STEPS)
        sent = fabric.traffic["training"].sent - before
        figures = whole.figures()
        train(fabric, workload, first, 0, 3)
        for resumed in (second, idle):
            resumed.load_state_dict(through_disk(first.state_dict(), fabric.rank))
        times = second.state_dict()["active"]["seconds"] == first.state_dict()["active"]["seconds"]
        with patch.object(Tables, "build", side_effect=Tables.build) as built_again:
            train(fabric, workload, second, 3, STEPS)
        builds = [built.call_count, built_again.call_count]
        models = [assembled(fabric, built) for built in (whole, second)]
        again = [resumed.figures() for resumed in (second, idle)]
        if models[0] is not None:
            seen[name] = [*map(weights_sha256, models), losses, sent / STEPS, figures, builds, times, again]
    return seen


@pytest.mark.parametrize("nodes", [1, 3])
def test_few_outputs_active_resume_exactly_after_a_small_exchange(nodes):
    _, seen = seen_by_nodes(nodes)[0]
    assert seen.keys() == SPARSE.keys()
    hidden = 4 * 32 * 9 // nodes
    small_exchange = (nodes - 1) * (hidden + 12 * 32 + hidden)
    for name, (digest, resumed, losses, sent, figures, builds, times, again) in seen.items():
        assert digest == resumed, name
        assert builds == BUILDS[name], name
        assert len(losses) == STEPS
        assert sent == small_exchange, name
        assert nodes <= figures["active_outputs"] < UNEVEN["labels"], name
        assert sum(own for part, own in figures.items() if part.startswith("time_")) == pytest.approx(1), name
        assert ("recall@100" in figures) == (name != "sampled_softmax")
        assert times, name
        resumed_figures, idle_figures = again
        assert resumed_figures["active_outputs"] == figures["active_outputs"], name
        assert resumed_figures.keys() == figures.keys(), name
        assert idle_figures.keys() == figures.keys() - {"recall@100"}, "no minibatch to look up"
