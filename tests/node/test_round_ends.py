"""Evaluations and budgets beside rounds, in real runs of two nodes. Functions named `node_*` run on every node."""

import itertools
import tempfile
import time
from pathlib import Path

import pytest
from ranks import Kept

from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.flat import floating_tensors
from istbench.methods.noloco import NoLoCo
from istbench.node.destinations import Destinations
from istbench.node.worker import RankTraining
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload

pytestmark = pytest.mark.processes

METHODS = ["local_sgd", "ist"]
BUDGET = 12
PAUSE = 0.5
CASES = {
    "ends in a round": {"local_steps": 100_000, "eval_every": Interval(steps=3)},
    "ends with a round": {"local_steps": BUDGET, "eval_every": Interval(steps=3)},
    "short rounds": {"local_steps": 5, "eval_every": Interval(steps=3)},
    "out of time in a round": {"local_steps": 100_000, "eval_every": Interval(steps=3), "max_seconds": 1e-9},
    "out of time, by seconds": {"local_steps": 100_000, "eval_every": Interval(seconds=1e-9), "max_seconds": 1e-6},
    "out of time with a round": {"local_steps": 2, "eval_every": Interval(steps=6), "max_seconds": 1e-9},
}


def node_runs(fabric, methods):
    found = {method: {} for method in methods}
    for method, (name, case) in itertools.product(methods, CASES.items()):
        case = dict(case)
        fabric.recorder.__init__(fabric.device)  # as of a fabric of its own
        config = RunConfig(
            workload="toy", method=method, nodes=fabric.world_size, seed=0, workload_options={},
            method_options={"lr": 0.1, "momentum": 0.5, "local_steps": case.pop("local_steps")},
            batch_size=16, steps=BUDGET, device="cpu", threads=1, **case,
        )  # fmt: skip
        kept = Kept()
        with tempfile.TemporaryDirectory() as folder:
            run = RunDirectory(Path(folder))
            destinations = Destinations([kept] if fabric.rank == 0 else [])
            RankTraining(run, config, open_workload("toy", {}), fabric, destinations).train()
            traced = run.trace.exists()
        if kept.result is not None:
            sent = [event.bytes_sent_per_node for event in kept.evaluations]
            steps = [event.step for event in kept.evaluations]
            found[method][name] = [steps, sent, kept.result.weights_sha256, traced]
    return found


def node_last_exchange(fabric):
    """By method: bytes sent and train seconds at every evaluation, and the bytes of a ring of the model."""
    found, finish = {}, NoLoCo.finish

    def slow(method):
        time.sleep(PAUSE)
        finish(method)

    for name, options in (("noloco", {}), ("streaming_diloco", {"fragments": 2, "delay": 2})):
        fabric.recorder.__init__(fabric.device)
        config = RunConfig(
            workload="toy", method=name, nodes=fabric.world_size, seed=0, workload_options={"batch_norm": True},
            method_options={"local_steps": 4, **options}, batch_size=16, steps=8, device="cpu", threads=1,
            eval_every=Interval(steps=4),
        )  # fmt: skip
        kept, workload = Kept(), open_workload("toy", {"batch_norm": True})
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(NoLoCo, "finish", slow)
            run = RunDirectory(Path(folder))
            RankTraining(run, config, workload, fabric, Destinations([kept] if fabric.rank == 0 else [])).train()
        model = sum(4 * own.numel() for own in floating_tensors(workload.build_model()))
        seen = [(event.bytes_sent_per_node, event.train_s) for event in kept.evaluations]
        found[name] = [*map(list, zip(*seen, strict=True)), model] if seen else []
    return found


def test_the_last_exchange_is_on_the_clock_with_its_bytes():
    found = on_nodes(node_last_exchange, 2)[0]
    (none, first, last), seconds, ring = found["noloco"]
    assert (none, last) == (0, 2 * first + ring)  # on two nodes a ring sends the model once
    assert seconds[2] - seconds[1] > PAUSE
    (none, first, last), _, _ = found["streaming_diloco"]
    assert (none, last) == (0, 2 * first)  # each evaluation has paid for the fragment in flight


@pytest.fixture(scope="module")
def found():
    """By method and case: the steps of evaluations, bytes sent by then, weights in the end, whether traced."""
    return on_nodes(node_runs, 2, METHODS)[0]


@pytest.fixture(params=METHODS)
def runs(found, request):
    """`found` of a method."""
    return found[request.param]


def test_a_budget_that_ends_inside_a_round_closes_it_and_counts_the_bytes(runs):
    open_ended, whole = runs["ends in a round"], runs["ends with a round"]
    assert open_ended[0] == whole[0] == [0, BUDGET]
    assert open_ended[1] == whole[1]
    assert open_ended[1][0] == 0 < open_ended[1][1]
    assert open_ended[2] == whole[2]


def test_evaluations_fall_on_ends_of_rounds(runs):
    steps, sent, _, traced = runs["short rounds"]
    assert steps == [0, 5, 10, BUDGET]
    once = runs["ends with a round"][1][-1]
    # What moves between two of IST's partitions is not always as much.
    assert sent == pytest.approx([0, once, 2 * once, 3 * once], rel=0.5)
    assert traced


def test_seconds_that_are_used_up_inside_a_round_end_it_where_an_evaluation_was_due(runs):
    assert runs["out of time in a round"][0] == [0, 3]
    assert runs["out of time, by seconds"][0] == [0, 10]
    assert runs["out of time with a round"][0] == [0, 6]
    for name in ("out of time in a round", "out of time, by seconds"):
        assert runs[name][1][-1] == pytest.approx(runs["ends with a round"][1][-1], rel=0.5)
        assert not runs[name][3]


def test_local_sgd_sends_one_all_reduce_of_the_model(found):
    parameters = sum(parameter.numel() for parameter in open_workload("toy", {}).build_model().parameters())
    assert found["local_sgd"]["ends in a round"][1] == [0, 4 * parameters]
