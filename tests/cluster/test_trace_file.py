"""Traces on disk: back as they were, and one line for anything that is not one."""

import json

import numpy as np
import pytest

from istbench.cluster.trace import TraceBuilder, merge
from istbench.cluster.trace_file import load_trace, save_trace
from istbench.errors import UserError


@pytest.fixture
def trace():
    nodes = []
    for rank in range(2):
        builder = TraceBuilder(lambda: 1.5)
        builder.compute(0.25)
        builder.wait(builder.post("send" if rank else "receive", 100, [1 - rank]))
        builder.mark("round")
        builder.mark("step")
        nodes.append(builder.to_arrays())
    return merge(nodes, {"gflops": {"a": 10.0, "b": 30.0}})


def test_a_trace_comes_back_as_it_was(trace, tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(trace, path)
    back = load_trace(path)
    assert all(np.array_equal(a, b) for a, b in zip(back.nodes, trace.nodes, strict=True))
    assert (back.meta, back.rounds, back.steps) == (trace.meta, 1, 1)
    assert back.gflops == pytest.approx(15.0)  # as many operations of each shape


def test_a_trace_cut_short_anywhere(trace, tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(trace, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="cut short or not a trace"):
            load_trace(path)


def rewritten(path, trace, change):
    header = {"version": 1, "meta": dict(trace.meta)}
    arrays = {f"node{rank}": events for rank, events in enumerate(trace.nodes)}
    change(header, arrays)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, arrays: header.update(version=7), "version 7, this istbench reads 1"),
        (lambda header, arrays: arrays.pop("node1"), "lacks node 1 of 2"),
        (lambda header, arrays: arrays.update(node1=np.zeros(3)), "does not hold events"),
        (lambda header, arrays: arrays.update(node1=arrays["node1"][:2]), "no step or round"),
        (lambda header, arrays: arrays["node1"]["bytes"].fill(7), "differ in size"),
    ],
)
def test_a_trace_of_another_kind(trace, tmp_path, change, message):
    path = tmp_path / "trace.npz"
    rewritten(path, trace, change)
    with pytest.raises(UserError, match=message) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


def test_pickles_are_not_read(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, header=np.array([{"version": 1}], dtype=object))
    with pytest.raises(UserError, match="not a trace"):
        load_trace(path)


def test_no_trace(tmp_path):
    with pytest.raises(UserError, match="no trace"):
        load_trace(tmp_path / "trace.npz")
