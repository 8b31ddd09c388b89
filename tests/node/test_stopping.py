"""A run that is asked to stop: at one step on all nodes, from which it goes on as if it had never stopped."""

import random
import threading
import time

import pytest
from ranks import Kept, StopsAt
from torch.distributed import HashStore

from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.fabric.signed_store import SignedStore
from istbench.fabric.texts import Texts
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.destinations import Destinations
from istbench.node.stopping import Stopping, StopRequest
from istbench.node.worker import RankTraining
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload


def steps_of(scratches, seed, round_steps, ask):
    """The step that each of some nodes stops at, which exchange at the ends of rounds, and are not equally fast."""
    store, found = SignedStore(HashStore(), b"a key"), [None] * len(scratches)
    exchange = threading.Barrier(len(scratches))

    def live(rank):
        chance = random.Random(seed * 100 + rank)
        words = Texts(store, rank, len(scratches))
        stopping = Stopping(StopRequest(scratches[rank]), words, rank, len(scratches), ahead_s=0.05)
        stopping.start(0)
        for step in range(1_000_000):
            if stopping.reached(step):
                found[rank] = step
                return
            time.sleep(chance.choice([0, 0, 0.0005, 0.003]))
            if (step + 1) % round_steps == 0:
                exchange.wait(30)

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(len(scratches))]
    for thread in threads:
        thread.start()
    for scratch in ask:
        time.sleep(0.05)
        assert StopRequest(scratch).request()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("round_steps", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_nodes_stop_at_the_same_step_though_they_hear_one_after_the_other(tmp_path, seed, round_steps):
    scratches = [tmp_path / str(rank) for rank in range(4)]
    for scratch in scratches:
        scratch.mkdir()
    found = steps_of(scratches, seed, round_steps, random.Random(seed).sample(scratches, 4))
    assert len(set(found)) == 1
    assert found[0] > 2


def test_workers_that_do_not_train_are_not_asked(tmp_path):
    assert not StopRequest(tmp_path).request()
    assert not StopRequest(tmp_path).requested()
    StopRequest(tmp_path).worker_ready()
    assert StopRequest(tmp_path).request()
    assert StopRequest(tmp_path).requested()


BUDGET, STOP = 14, 7
CASES = {
    "ddp": ("toy", {"momentum": 0.9}),
    "zero": ("toy", {"momentum": 0.9}),
    "fsdp": ("toy", {"optimizer": "adam"}),
    "local_sgd": ("toy", {"momentum": 0.9, "local_steps": 5}),
    "ist": ("toy", {"momentum": 0.9, "local_steps": 5}),
    "streaming_ist": ("toy", {"momentum": 0.9, "local_steps": 4}),
    "p3": ("toy", {"optimizer": "adam", "slice_params": 30}),
    "parameter_server": ("toy", {"momentum": 0.9}),
    "model_parallel": ("amazon670k", {}),
    "dslide": ("amazon670k", {"target_active": 3}),
    "sampled_softmax": ("amazon670k", {}),
}
SIZES = {"toy": {"hidden": 12, "layers": 2}, "amazon670k": {"hidden": 3, "features": 9, "labels": 7, "points": 256}}
# Others are figures of the training since the last evaluation, such as seconds.
METRICS = {"accuracy", "loss", "precision@1", "precision@3", "precision@5"}


def node_stopped(fabric, folder, name, stops):
    """What a run evaluates and its digest, one that is stopped at each of `stops` and gone on with."""
    workload, options = CASES[name]
    config = RunConfig(
        workload=workload, method=name, nodes=fabric.world_size, seed=0, workload_options={},
        method_options={"lr": 0.1, **options}, batch_size=16, steps=BUDGET, eval_every=Interval(steps=6),
        device="cpu", threads=1,
    )  # fmt: skip
    kept = Kept()
    for stop in [*stops, None]:
        for traffic in fabric.traffic.values():
            traffic.sent = traffic.received = 0
        fabric.recorder.__init__(fabric.device)  # as of a fabric of its own
        run = RunDirectory(folder)
        sinks = Destinations([kept] if fabric.rank == 0 else [])
        opened = open_workload(workload, SIZES[workload])
        RankTraining(run, config, opened, fabric, sinks, StopsAt(stop) if stop else None).train()
        assert (run.checkpoint / str(stop) / "manifest.json").exists() == bool(stop)
        fabric.barrier()
    told = []
    for event in kept.evaluations:
        metrics = {name: value for name, value in event.metrics.items() if name in METRICS}
        told.append([event.step, event.bytes_sent_per_node, event.train_loss, metrics])
    return [told, kept.result and kept.result.weights_sha256]


def node_cases(fabric, folder):
    """By case, what `node_stopped` tells of a run that never stops and of one that does."""
    found = {}
    for name in CASES:
        found[name] = []
        for stops in ([], [STOP, STOP + 1, STOP + 5]):
            run = folder / f"{name}-{len(stops)}"
            run.mkdir(exist_ok=True)  # nodes share it
            found[name].append(node_stopped(fabric, run, name, stops))
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What rank 0 tells of each case; one launch trains all."""
    return on_nodes(node_cases, 2, tmp_path_factory.mktemp("runs"))[0]


@pytest.mark.processes
@pytest.mark.parametrize("name", CASES)
def test_a_run_stopped_after_any_step_is_the_run_that_never_stopped(told, name):
    whole, stopped = told[name]
    assert whole == stopped
