"""Traces of methods whose messages travel across the end of a round: a repeated sample waits for each of them."""

import numpy as np
import pytest

from istbench.cluster.trace import AFTER, EVENT, POST, RECEIVE, WAIT, WAIT_BEFORE, WORK
from istbench.launch.processes.on_nodes import on_nodes
from istbench.studies.conformance.training import batches_of, open_workload, set_up

pytestmark = pytest.mark.processes

_OPTIONS = {
    "p3": {"slice_params": 1_000},
    "parameter_server": {},
    "streaming_ist": {"local_steps": 4},
    "streaming_diloco": {"local_steps": 4},
}


def events_of(fabric, name):
    workload = open_workload("toy", {"hidden": 32, "layers": 3})
    method = set_up(fabric, workload, name, _OPTIONS[name])
    batches = batches_of(fabric, workload, method)
    for step in range(40):
        method.step(workload.train_batch(batches.indices(step), batches.generator(step)))
        fabric.recorder.mark("step")
        if step % 12 == 11:  # as before an evaluation, also in the middle of the sample
            method.drain()
    method.drain()
    return [[value.item() for value in event] for event in fabric.recorder.events()]


@pytest.mark.parametrize("name", _OPTIONS)
def test_every_round_of_a_repeated_sample_waits_for_as_many_operations(name):
    for recorded in on_nodes(events_of, 2, name):
        events = np.array([tuple(event) for event in recorded], dtype=EVENT)
        awaited = events["op"][np.isin(events["code"], (WAIT, WAIT_BEFORE))]
        assert len(np.unique(awaited)) == len(awaited) > 0
        assert np.any(events["code"] == WAIT_BEFORE)
        posts = events[events["code"] == POST]
        if name.startswith("streaming"):
            assert len(awaited) == len(posts)
        else:
            updates = posts["op"][posts["kind"] == WORK]
            assert np.isin(updates, awaited).all()
            received = posts["op"][posts["kind"] == RECEIVE]
            gradients = events["op"][events["code"] == AFTER]  # an update comes after them
            replies = np.setdiff1d(received, gradients)
            assert len(replies)
            assert np.isin(replies, awaited).all()
