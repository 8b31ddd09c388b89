"""What a served model leaves in the trace: every slice's push and reply, and their priorities."""

import dataclasses
import functools
import queue
from itertools import pairwise

import numpy as np
import pytest
import torch

from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import AFTER, COMPUTE, EVENT, POST, SEND, WORK
from istbench.cluster.trace_builder import merge
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.evaluate import evaluate
from istbench.studies.conformance.training import assembled, batches_of, open_workload, set_up

pytestmark = pytest.mark.processes

WIDE = {"hidden": 64, "layers": 4}
PARAMETERS = 8 * 64 + 64 + 3 * (64 * 64 + 64) + 64 * 4 + 4


def node_trace(fabric, options):
    workload = open_workload("toy", WIDE)
    method = set_up(fabric, workload, "p3", options)
    batches = batches_of(fabric, workload, method)
    for step in range(30):
        method.step(workload.train_batch(batches.indices(step), batches.generator(step)))
        fabric.recorder.mark("step")
    method.drain()
    return [[value.item() for value in event] for event in fabric.recorder.events()]


def node_evaluated(fabric, method):
    """The number of events of each step in the sample, and of the evaluation between two of them."""
    workload = open_workload("toy", WIDE)
    method = set_up(fabric, workload, method, {})
    batches, evaluated, counts = batches_of(fabric, workload, method), 0, []
    for step in range(8):
        before = len(fabric.recorder._builder)
        method.step(workload.train_batch(batches.indices(step), batches.generator(step)))
        fabric.recorder.mark("step")
        counts.append(len(fabric.recorder._builder) - before)
        if step == 4:
            model = assembled(fabric, method)
            if model is not None:
                evaluate(model, workload, fabric.device)
            evaluated = len(fabric.recorder._builder) - before - counts[-1]
    return counts[3:], evaluated


@pytest.mark.parametrize("method", ["p3", "parameter_server"])
def test_an_evaluation_records_nothing_and_leaves_the_next_step_its_waits(method):
    for counts, evaluated in on_nodes(node_evaluated, 2, method):
        assert evaluated == 0
        assert counts[0] > 0
        assert len(set(counts)) == 1


@functools.cache
def recorded(nodes, **options):
    events = on_nodes(node_trace, nodes, {"slice_params": 1_000, **options})
    return merge([np.array([tuple(event) for event in node], dtype=EVENT) for node in events])


def threads_that_update(fabric):
    torch.set_num_threads(2)
    set_up(fabric, open_workload("toy", {}), "p3", {})
    told = queue.SimpleQueue()
    fabric.transport.work([(0, lambda: told.put(torch.get_num_threads()))])
    return [told.get(timeout=60), torch.get_num_threads()]


def test_updates_are_not_shared_by_threads_but_training_is():
    assert on_nodes(threads_that_update, 1) == [[1, 2]]


FAST = dataclasses.replace(
    load_profile("office-1gbit").with_bandwidth(1e12),
    latency_s=0.0, overhead_s=0.0, cores=None, cpu_s_per_byte=0.0, cpu_s_per_message=0.0,
)  # fmt: skip
SLOW = load_profile("office-1gbit").with_bandwidth(1e7)


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_round_moves_what_a_ring_all_reduce_would(nodes):
    trace = recorded(nodes)
    assert trace.rounds == trace.steps == 20
    sent = [
        int(events["bytes"][(events["code"] == POST) & (events["kind"] == SEND)].sum()) for events in trace.nodes
    ]
    assert sum(sent) == trace.rounds * 2 * 4 * PARAMETERS * (nodes - 1)
    for events in trace.nodes:
        assert np.count_nonzero(events["code"] == AFTER)  # replies come after pushes
    replayed = replay(trace, SLOW, compute_scale=1.0)
    assert replayed.bytes_sent.sum() == sum(sent)


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_update_is_recorded_with_the_seconds_of_the_thread_that_did_it(nodes):
    trace = recorded(nodes, optimizer="adam")
    slices = -(-PARAMETERS // 1_000)
    updates = [events[(events["code"] == POST) & (events["kind"] == WORK)] for events in trace.nodes]
    assert sum(map(len, updates)) >= trace.rounds * slices
    assert all((work["seconds"] > 0).all() for work in updates)
    # On a core of its own a node takes as long as both its threads; beside it, updates are partly hidden.
    own = [float(events["seconds"][events["code"] == COMPUTE].sum()) for events in trace.nodes]
    both = [mine + float(work["seconds"].sum()) for mine, work in zip(own, updates, strict=True)]
    alone = replay(trace, dataclasses.replace(FAST, cores=1.0), compute_scale=1.0).seconds
    assert alone == pytest.approx(max(both), rel=0.05) if nodes == 1 else alone >= max(own)
    assert replay(trace, FAST, compute_scale=1.0).seconds <= alone


def overtaken(trace):
    """Of every two pushes in turn on one connection of the replay, how many were posted the other way round."""
    events = trace.nodes[0]
    after = np.flatnonzero(events["code"] == AFTER)
    replies = {int(op) for op in events["op"][after + 1][events["code"][after + 1] == POST]}
    spans = replay(trace, SLOW, compute_scale=1.0, spans=True).spans
    pushes = [span.op for span in spans if span.activity == "message" and span.node == 0 and span.op not in replies]
    return sum(later < earlier for earlier, later in pairwise(pushes))


def test_slices_overtake_each_other_only_by_priority():
    assert overtaken(recorded(2)) >= 20  # once a round
    assert overtaken(recorded(2, priority=False)) == 0
