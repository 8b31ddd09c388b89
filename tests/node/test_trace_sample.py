"""What is kept of a trace, and where there can be none. Functions named `node_*` run on every node."""

import pytest

from istbench.cluster.speed import StepWork
from istbench.cluster.trace_file import load_trace
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node import trace_sample
from istbench.node.effort import EFFORT
from istbench.node.step_work import CountedStep
from istbench.node.trace_sample import TraceSample

pytestmark = pytest.mark.processes

STEP = CountedStep(StepWork(operations=1e6, bytes=1e5), ((4, 64, 64),))


def node_saves_what_there_is(fabric, folder):
    """What lies at a path before and after two parts of a run, the later with a few rounds only."""
    found = []
    for name in ("new", "kept"):
        path = folder / name
        if name == "kept":
            path.write_bytes(b"an earlier part's")
        sample = TraceSample(path, STEP, fabric, 4)
        sample.start()
        for _ in range(3):
            fabric.recorder.mark("round")
            fabric.recorder.mark("step")
        found.append([sample.save(whole=False), path.read_bytes()[:4].decode("latin-1")])
    return found


def test_a_part_of_a_trace_does_not_take_the_place_of_an_earlier_one(tmp_path):
    assert on_nodes(node_saves_what_there_is, 1, tmp_path)[0] == [[None, "PK\x03\x04"], [None, "an e"]]


def test_a_trace_that_cannot_be_written_is_a_reason_and_no_error(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot write" in on_nodes(node_cannot_save, 1, tmp_path / "file" / "trace.npz")[0]


def node_cannot_save(fabric, path):
    """What `save` says."""
    sample = TraceSample(path, STEP, fabric, 4)
    sample.start()
    for _ in range(3):
        fabric.recorder.mark("round")
        fabric.recorder.mark("step")
    return sample.save(whole=False)


def node_measures(fabric, path, apart_s):
    """A run of two segments without a round, and then one with rounds."""
    sample = TraceSample(path, STEP, fabric, 4, apart_s=apart_s)
    sample.start()
    for _ in range(2):
        sample.save(whole=True)
    for _ in range(3):
        fabric.recorder.mark("round")
        fabric.recorder.mark("step")
    sample.save(whole=False)


@pytest.mark.parametrize(("apart_s", "moments"), [(60.0, 2), (0.0, 4)])
def test_short_segments_do_not_measure_the_machine_each(tmp_path, apart_s, moments):
    on_nodes(node_measures, 1, tmp_path / "trace.npz", apart_s)
    assert len(load_trace(tmp_path / "trace.npz").meta.moments) == moments


def node_does_not_do_alike(fabric, path):
    """Receives that are posted for messages of another size than is sent."""
    sample = TraceSample(path, STEP, fabric, 4)
    sample.start()
    peer = 1 - fabric.rank
    for _ in range(3):
        if fabric.recorder.running:
            fabric.recorder.post("send", 8, (peer,))
            fabric.recorder.post("receive", 16, (peer,))
        fabric.recorder.mark("round")
        fabric.recorder.mark("step")
    return sample.save(whole=False)


def test_nodes_that_do_not_do_alike_leave_no_trace_and_say_why(tmp_path):
    first, second = on_nodes(node_does_not_do_alike, 2, tmp_path / "trace.npz")
    assert "differ in size" in first
    assert second is None
    assert not (tmp_path / "trace.npz").exists()


def node_records_more_than_fits(fabric, path, most):
    """A trace of seven rounds, the first of them long, where one holds `most` events."""
    trace_sample.MOST_EVENTS, fabric.several_hosts = most, True
    sample = TraceSample(path, STEP, fabric, 4)
    sample.start()
    for number in range(8):
        for _ in range(10 if number == 1 else 1):
            with fabric.recorder.waiting(fabric.recorder.post("all_reduce", 8)):
                pass
        fabric.recorder.mark("round")
        fabric.recorder.mark("step")
    return sample.save(whole=False)


@pytest.mark.parametrize(("most", "rounds"), [(1000, 7), (140, 4), (105, 2), (90, 1), (80, 0)])
def test_a_sample_that_is_too_large_for_a_trace_keeps_its_first_rounds(tmp_path, most, rounds):
    path = tmp_path / "trace.npz"
    first, second = on_nodes(node_records_more_than_fits, 2, path, most)
    assert second is None
    if rounds == 0:
        assert first == "a round has 88 events, more than the 80 of a trace"
        assert not path.exists()
        return
    assert first is None
    trace = load_trace(path)
    assert trace.rounds == rounds
    assert sum(map(len, trace.nodes)) <= most


def node_array(fabric):
    """Values of an array with which it measures the speed of memory."""
    return EFFORT.array


def test_workers_of_tests_measure_memory_on_small_arrays():
    assert on_nodes(node_array, 1)[0] <= 1 << 20 < EFFORT.array
