"""Unequal nodes: the mean over all samples of a step, however they are divided. `node_*` runs on every node."""

import json
import tempfile
import time
from pathlib import Path

import pytest
import torch
from ranks import Kept

from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.base.options.shares import Shares
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel
from istbench.node.destinations import Destinations
from istbench.node.losses import Losses
from istbench.node.measured_shares import relative_speeds, step_seconds
from istbench.node.setup import set_up
from istbench.node.worker import RankTraining
from istbench.results.events import speeds_of
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import assembled, largest_difference, open_workload, plain_training

EXACT = 2e-5  # float32 sums in another order, over some steps
STEPS, NODES, BATCH = 6, 4, 12
SHARES = Shares((1, 0.5, 2, 1.3))
SGD = {"lr": 0.1}
MOMENTUM = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "clip": 0.5}
OUTER = {"optimizer": "sgd", "lr": 0.1, "local_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}

# Each is one process on the joined minibatches: by name, the method, its options, and those of the process.
JOINED = {
    "ddp": ("ddp", MOMENTUM, MOMENTUM),
    "zero": ("zero", MOMENTUM, MOMENTUM),
    "fsdp": ("fsdp", MOMENTUM, MOMENTUM),
    "fsdp in groups": ("fsdp", {**SGD, "shard": 2}, SGD),
    "parameter_server": ("parameter_server", {**SGD, "accumulation_steps": 2}, SGD),
    "p3": ("p3", {"lr": 0.05, "momentum": 0.9}, {"lr": 0.05, "momentum": 0.9}),
    "local_sgd": ("local_sgd", {**SGD, "local_steps": 1}, SGD),
    "with state": (
        "local_sgd",
        {"lr": 0.05, "momentum": 0.9, "local_steps": 1, "average_optimizer": True},
        {"lr": 0.05, "momentum": 0.9},
    ),
    "in groups": ("local_sgd", {**SGD, "local_steps": 1, "group": 2}, SGD),
    "diloco": ("diloco", OUTER, SGD),
    "diloco in groups": ("diloco", {**OUTER, "group": 2}, SGD),
    "streaming_diloco": ("streaming_diloco", {**OUTER, "fragments": 1, "delay": 0, "alpha": 0.0}, SGD),
    "sparseloco": ("sparseloco", {**OUTER, "chunk": 8, "top": 8, "feedback": 0.0}, SGD),
    "sparseloco of all": ("sparseloco", {**OUTER, "chunk": 8, "top": 8, "feedback": 0.0, "mean": "all"}, SGD),
}  # fmt: skip

LOOKED_AT = ("ddp", "local_sgd")  # for their losses


def cell(method, options, shares=SHARES):
    return RunConfig(
        workload="toy", method=method, nodes=NODES, seed=0, workload_options={}, method_options=options,
        batch_size=BATCH, steps=STEPS, eval_every=Interval(steps=STEPS), device="cpu", shares=shares,
    )  # fmt: skip


def trained(fabric, workload, config, steps=STEPS):
    """The method after `steps`, the assembled model, and the mean loss."""
    setup = set_up(config, workload, fabric)
    losses = Losses(fabric.device, samples=setup.method.samples)
    for step in range(steps):
        setup.method.local_step = step
        losses.add(setup.method.step(setup.batch(step)))
    setup.method.drain()
    return setup.method, assembled(fabric, setup.method), losses.mean(fabric, 0)


def node_all(fabric):
    """By name, how far each of `JOINED` is from one process, some of them also in the loss that a run records."""
    workload = open_workload("toy", {"hidden": 13, "layers": 2})
    workload.batch_size = BATCH
    seen = {}
    for name, (method, options, plain) in JOINED.items():
        _, model, loss = trained(fabric, workload, cell(method, options))
        equal = trained(fabric, workload, cell(method, options, None))[2] if name in LOOKED_AT else loss
        if model is not None:
            joined = plain_training(workload, DataParallel.Options(**plain), STEPS, nodes=NODES)
            seen[name] = [largest_difference(model, joined), abs(loss - equal)]
    seen["a round"] = round_against_its_definition(fabric, workload)
    seen["units"] = {method: units(fabric, workload, method) for method in ("ist", "streaming_ist")}
    seen["speeds"] = speeds_with_a_slow_node(fabric, workload)
    seen["run"] = whole_run(fabric, workload)
    return seen


def whole_run(fabric, workload):
    """Of a run that measures: the recorded speeds, and the digest beside that of a run with these numbers."""
    digests, speeds = [], ()
    for _ in range(2):
        kept, config = Kept(), cell("local_sgd", SGD, Shares(speeds))
        with tempfile.TemporaryDirectory() as folder:
            destinations = Destinations([kept] if fabric.rank == 0 else [])
            RankTraining(RunDirectory(Path(folder)), config, workload, fabric, destinations).train()
        speeds = json.loads(fabric.texts.broadcast(json.dumps(speeds or speeds_of(kept.events))))
        digests.append(kept.result and [kept.result.weights_sha256, kept.result.samples])
    return [speeds, *digests]


def speeds_with_a_slow_node(fabric, workload):
    """The measured speeds where node 1 makes its batches slowly."""
    make = workload.train_batch
    if fabric.rank == 1:
        workload.train_batch = lambda *given: time.sleep(0.1) or make(*given)
    found = relative_speeds(step_seconds(cell("local_sgd", SGD, None), workload, fabric))
    workload.train_batch = make
    return found


def round_against_its_definition(fabric, workload):
    """How far a round of three local steps is from the mean of the nodes' models by their samples."""
    config = cell("local_sgd", {**SGD, "local_steps": 3})
    method, model, _ = trained(fabric, workload, config, 3)
    mine = plain_training(workload, DataParallel.Options(**SGD), 0)
    setup, optimizer = set_up(config, workload, fabric), torch.optim.SGD(mine.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        workload.loss(mine, setup.batch(step)).backward()
        optimizer.step()
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.mul_(method.samples[fabric.rank] / sum(method.samples))
            fabric.all_reduce_sum(parameter)
    return None if model is None else largest_difference(model, mine)


def units(fabric, workload, method):
    """The units of each node's subnet, and whether rounds that only exchange leave the model as it is."""
    options = {**SGD, "local_steps": 3}
    trainer, model, _ = trained(fabric, workload, cell(method, options))
    sizes = [int(size) for size in fabric.numbers(len(trainer.state_dict()["subnet"]["linear1.weight"]))]
    finite = model is None or all(torch.isfinite(own).all() for own in model.parameters())
    still = 0.0
    if method == "ist":
        _, moved, _ = trained(fabric, workload, cell("ist", {**SGD, "local_steps": 0}))
        start = plain_training(workload, DataParallel.Options(**SGD), 0)
        still = 0.0 if moved is None else largest_difference(moved, start)
    return [sizes, bool(finite), still, len(trainer.samples)]


@pytest.fixture(scope="module")
def seen():
    return on_nodes(node_all, NODES)[0]


@pytest.mark.parametrize("name", JOINED)
def test_the_weights_are_those_of_one_process_on_the_joined_minibatches(seen, name):
    weights, _ = seen[name]
    assert weights < EXACT


def test_the_recorded_loss_is_the_mean_over_samples(seen):
    assert max(seen[name][1] for name in LOOKED_AT) < EXACT


def test_a_round_ends_in_the_mean_by_samples(seen):
    assert seen["a round"] < EXACT


def test_a_slow_node_is_measured_as_slow(seen):
    others = [seen["speeds"][rank] for rank in (0, 2, 3)]
    assert max(others) == 1
    assert seen["speeds"][1] < min(others) / 2


def test_a_run_records_the_speeds_by_which_it_trains(seen):
    speeds, measured, given = seen["run"]
    assert len(speeds) == NODES
    assert max(speeds) == 1
    assert measured == given
    assert measured[1] == STEPS * BATCH * NODES


def test_units_are_dealt_by_speed_and_minibatches_stay_equal(seen):
    for sizes, finite, still, samples in seen["units"].values():
        assert sizes == [3, 1, 5, 4]  # of 13 units: 2.7, 1.4, 5.4 and 3.5 by largest remainder
        assert finite
        assert still == 0
        assert samples == 0
