"""Bytes of a run, whole and resumed. Functions named `node_*` run on every node."""

import pytest
from late_messages import make_late
from ranks import Kept, StopsAt

from istbench.base.options.run import RunRequest
from istbench.fabric.recorder import Recorder
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.destinations import Destinations
from istbench.node.worker import RankTraining
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload

pytestmark = pytest.mark.processes

STOPPED_AT = 4


def bytes_of(counted):
    """Bytes that an evaluation or a result tells."""
    return [counted.bytes_sent_per_node, counted.bytes_received_per_node]


def node_counts(fabric, config, folder):
    """Bytes of a run that never stops, and of one that is stopped and resumed, on a slow network."""
    make_late(fabric, 0.02)
    counts = []
    for name, stops in (("whole", [None]), ("resumed", [STOPPED_AT, None])):
        kept = Kept()
        for stop in stops:
            fabric.recorder = Recorder(fabric.device)  # as in a new process
            sinks = Destinations([kept] if fabric.rank == 0 else [])
            run = RunDirectory(folder / name)
            workload = open_workload("toy", config.workload_options)
            RankTraining(run, config, workload, fabric, sinks, StopsAt(stop) if stop else None).train()
        by_step = {event.step: bytes_of(event) for event in kept.evaluations}
        counts.append({**by_step, "result": bytes_of(kept.result)} if kept.result else {})
    return counts


def node_counts_by_evaluations(fabric, configs, folder):
    """Bytes at the end of runs that differ in nothing but how often they are evaluated."""
    found = []
    for number, config in enumerate(configs):
        kept = Kept()
        sinks = Destinations([kept] if fabric.rank == 0 else [])
        fabric.recorder = Recorder(fabric.device)
        run = RunDirectory(folder / str(number))
        RankTraining(run, config, open_workload("toy", config.workload_options), fabric, sinks).train()
        found.append(kept.result and bytes_of(kept.result))
    return found


def test_the_busiest_node_is_that_of_the_whole_run_however_often_is_evaluated(tmp_path):
    requests = [
        RunRequest(
            workload="toy", method="ist", nodes=3, steps=12, eval_every=every,
            workload_options={"hidden": "7"}, method_options={"local_steps": "1"},
        )
        for every in (1, 12)
    ]  # fmt: skip
    configs = [prepare_cell(request, lambda *_: None).config for request in requests]
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    often, once = on_nodes(node_counts_by_evaluations, 3, configs, tmp_path)[0]
    assert often == once > [0, 0]


@pytest.mark.parametrize("method", ["p3", "parameter_server"])
def test_a_resumed_run_tells_the_bytes_of_one_that_never_stopped(tmp_path, method):
    request = RunRequest(workload="toy", method=method, nodes=2, steps=6, eval_every=2, checkpoint_every_s=0)
    config = prepare_cell(request, lambda *_: None).config
    (tmp_path / "whole").mkdir()
    (tmp_path / "resumed").mkdir()
    whole, resumed = on_nodes(node_counts, 2, config, tmp_path)[0]
    assert whole["0"] == [0, 0]
    assert whole["result"] == whole["6"] > whole["4"] > whole["2"] > [0, 0]
    assert resumed == whole
