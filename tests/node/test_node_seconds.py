"""What each node computes and waits. Functions named `node_*` run on every node."""

import time

import msgspec
import pytest
from ranks import Kept, StopsAt

from istbench.base.machine import host_name
from istbench.base.options.run import RunRequest
from istbench.fabric.recorder import Recorder
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.destinations import Destinations
from istbench.node.worker import RankTraining
from istbench.results.header import Result
from istbench.results.slow_node import straggler
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload

pytestmark = pytest.mark.processes

STEPS, PAUSE_S = 12, 0.05
CELLS = {
    "ddp": {}, "local_sgd": {"local_steps": "2"}, "ist": {"local_steps": "2"}, "p3": {}, "fsdp": {},
    "streaming_ist": {"local_steps": "2"},
}  # fmt: skip


def pausing(workload):
    """`workload`, whose training batches take their time."""
    made = workload.train_batch

    def train_batch(indices, generator):
        time.sleep(PAUSE_S)
        return made(indices, generator)

    workload.train_batch = train_batch
    return workload


def node_results(fabric, configs, folder, stops):
    """What came of each cell of `configs`, whose rank 1 is slow; each one stops at each of `stops` and resumes."""
    found = {}
    for name, config in configs.items():
        sink = Kept()
        for stop in [*stops, None]:
            fabric.recorder = Recorder(fabric.device)  # as in a new process
            workload = open_workload("toy", config.workload_options)
            sinks = Destinations([sink] if fabric.rank == 0 else [])
            slowed = pausing(workload) if fabric.rank == 1 else workload
            RankTraining(
                RunDirectory(folder / name), config, slowed, fabric, sinks, StopsAt(stop) if stop else None
            ).train()
        found[name] = msgspec.to_builtins(sink.result) if fabric.rank == 0 else None
    return found


def config_of(name, **changed):
    request = RunRequest(
        workload="toy", method=name, nodes=2, steps=STEPS, eval_every=3, method_options=CELLS[name],
        **changed,
    )  # fmt: skip
    return prepare_cell(request, lambda *_: None).config


def test_a_slow_node_computes_while_the_other_one_waits(tmp_path):
    for name in CELLS:
        (tmp_path / name).mkdir()
    configs = {name: config_of(name) for name in CELLS}
    results = on_nodes(node_results, 2, configs, tmp_path, [])[0]
    for name, plain in results.items():
        result = msgspec.convert(plain, Result)
        fast, slow = result.node_seconds
        assert (fast.rank, slow.rank, fast.host, slow.host) == (0, 1, host_name(), host_name())
        assert fast.computing_s + fast.waiting_s == pytest.approx(result.train_s), name
        assert slow.computing_s + slow.waiting_s == pytest.approx(result.train_s), name
        assert slow.computing_s >= STEPS * PAUSE_S, name
        assert straggler(result.node_seconds).slowest is slow, name


def test_seconds_of_a_resumed_run_add_up(tmp_path):
    (tmp_path / "ddp").mkdir()
    configs = {"ddp": config_of("ddp", checkpoint_every_s=0)}
    result = msgspec.convert(on_nodes(node_results, 2, configs, tmp_path, [STEPS // 2])[0]["ddp"], Result)
    assert result.node_seconds[1].computing_s >= STEPS * PAUSE_S
    assert result.node_seconds[1].computing_s <= result.train_s
