"""Traces come back from disk as they were, and damage is one line with the way out."""

import json
import pickle
from contextlib import suppress

import numpy as np
import pytest
from traces import random_trace

from istbench.base.errors import UserError
from istbench.cluster.trace import TRACE_VERSION, Trace
from istbench.cluster.trace_file import load_trace, save_trace


@pytest.fixture
def sample():
    return random_trace(np.random.default_rng(1), nodes=3, operations=4, rounds=2)


def header(**changes):
    fields = {"version": TRACE_VERSION, "meta": {"nodes": 1, "gflops": 1.0}, **changes}
    return np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8)


def complaint(path):
    with pytest.raises(UserError) as caught:
        load_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "istbench run --again" in message
    return message


def test_a_trace_comes_back_the_same(sample, tmp_path):
    save_trace(sample, tmp_path / "made" / "trace.npz")
    again = load_trace(tmp_path / "made" / "trace.npz")
    assert (again.meta, again.version) == (sample.meta, sample.version)
    for before, after in zip(sample.nodes, again.nodes, strict=True):
        assert np.array_equal(before, after)
    save_trace(again, tmp_path / "twice.npz")
    assert (tmp_path / "twice.npz").read_bytes() == (tmp_path / "made" / "trace.npz").read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_cut_short_or_damaged_anywhere_is_no_traceback(sample, tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(sample, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert "cut short or not a trace" in complaint(path)
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(UserError):
            load_trace(path)


def test_other_versions_are_not_guessed_at(sample, tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(Trace(nodes=sample.nodes, meta=sample.meta, version=TRACE_VERSION + 1), path)
    assert f"of version {TRACE_VERSION + 1}, this istbench reads {TRACE_VERSION}" in complaint(path)


def test_a_missing_node_is_named(sample, tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(Trace(nodes=sample.nodes[:2], meta=sample.meta), path)
    assert "lacks node 2 of 3" in complaint(path)


def test_nodes_that_do_not_fit_together_are_named(sample, tmp_path):
    path = tmp_path / "trace.npz"
    nodes = (*sample.nodes[:2], sample.nodes[2][:-1])
    save_trace(Trace(nodes=nodes, meta=sample.meta), path)
    assert "cannot be replayed: node 2 has other steps and rounds" in complaint(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"header": np.zeros(3, np.uint8)},
        {"header": np.frombuffer(b"[]", np.uint8)},
        {"header": header(meta=None)},
        {"header": header(meta={})},
        {"header": header(meta={"nodes": 10**12})},
        {"header": header(meta={"nodes": 0})},
        {"header": header(meta={"nodes": True})},
        {"header": header(meta={"nodes": 1, "gflops": 0})},
        {"header": header(meta={"nodes": 1, "gflops": float("nan")})},
        {"header": header(meta={"nodes": 1, "gflops": {"a": 1, "b": None}})},
        {"header": header(meta={"nodes": 1, "batch_size": 10**400})},
        {"header": header(version="1")},
        {"header": np.frombuffer(b"[" * 100_000, np.uint8)},
        {"header": header(), "node0": np.zeros(3)},
        {"header": header(), "node0": np.array([{"a": 1}], dtype=object)},
    ],
)
def test_archives_of_something_else_are_not_traces(arrays, tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, **arrays)
    complaint(path)


def test_pickles_are_not_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").write_text, ("x",))

    path = tmp_path / "trace.npz"
    path.write_bytes(pickle.dumps(Trap()))
    complaint(path)
    np.savez(path, header=header(), node0=np.array([Trap()], dtype=object))
    (tmp_path / "sprung").unlink(missing_ok=True)
    complaint(path)
    np.save(path.open("wb"), np.zeros(3))
    complaint(path)
    assert not (tmp_path / "sprung").exists()


def test_no_file_and_no_room(sample, tmp_path):
    assert "no file" in complaint(tmp_path / "absent.npz")
    assert "is a directory" in complaint(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*trace.npz"):
        save_trace(sample, tmp_path / "file" / "trace.npz")
