"""Whatever a trace's file holds, it is read and can be replayed, or refused in one line that names it."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
from garbage import VALUES, as_json, damaged, nested, one_line, quick
from hypothesis import given
from hypothesis import strategies as st
from traces import random_trace

from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import EVENT, MOST_EVENTS
from istbench.cluster.trace_file import load_trace, save_trace

M5 = load_profile("m5.2xlarge")
SOUND = random_trace(np.random.default_rng(3), nodes=2, operations=3, rounds=2)
HEADER = {"version": 1, "meta": {"nodes": 2, "batch_size": 8, "gflops": {"8x4x2": 20.0, "8x2x2": 10.0}}}
NUMBERS = st.one_of(
    st.sampled_from(
        [0, 1, -1, 255, 2**31 - 1, -(2**31), 2**53, 2**63 - 1, float("nan"), float("inf"), 1e300, -1e300]
    ),
    st.integers(0, 3),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "trace.npz"


def tried(path):
    """What its replay gives; None where it is refused, in a line that names it."""
    refused = None
    try:
        return replay(load_trace(path), M5, rounds=3)
    except UserError as error:
        refused = one_line(error)
    assert str(path) in refused or "record it again" in refused
    return None


def write(path, header, nodes=SOUND.nodes):
    arrays = {f"node{rank}": events for rank, events in enumerate(nodes)}
    np.savez(path, header=np.frombuffer(header.encode(errors="surrogatepass"), np.uint8), **arrays)


def test_the_trace_that_is_damaged_below_is_sound(path):
    write(path, json.dumps(HEADER))
    assert tried(path).seconds > 0


@quick(80)
@given(header=damaged(HEADER))
def test_a_damaged_header(path, header):
    write(path, as_json(header))
    tried(path)


@quick(40)
@given(name=st.sampled_from(["nodes", "batch_size", "gflops"]), value=VALUES)
def test_any_value_for_any_figure(path, name, value):
    write(path, as_json({**HEADER, "meta": {**HEADER["meta"], name: value}}))
    tried(path)


@quick(150)
@given(data=st.data())
def test_any_value_for_any_field_of_an_event(path, data):
    rank, name = data.draw(st.integers(0, 1)), data.draw(st.sampled_from(EVENT.names))
    nodes = [events.copy() for events in SOUND.nodes]
    number = data.draw(st.integers(0, len(nodes[rank]) - 1))
    with np.errstate(invalid="ignore"):
        nodes[rank][name][number] = np.array(data.draw(NUMBERS)).astype(EVENT[name])
    write(path, json.dumps(HEADER), nodes)
    tried(path)


@quick(100)
@given(content=st.binary(max_size=60), at=st.floats(0, 1))
def test_bytes_in_the_middle_of_a_file(path, content, at):
    save_trace(SOUND, path)
    before = path.read_bytes()
    place = int(at * len(before))
    path.write_bytes(before[:place] + content + before[place + len(content) :])
    tried(path)


@quick(150)
@given(content=st.binary(min_size=1, max_size=12), at=st.floats(0, 1))
def test_bytes_in_an_array_whose_checksum_is_right(path, content, at):
    whole = io.BytesIO()
    np.save(whole, SOUND.nodes[0])
    array = whole.getvalue()
    place = int(at * 400)  # mostly in the array's header
    write(path, json.dumps({**HEADER, "meta": {"nodes": 1}}), ())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("node0.npy", array[:place] + content + array[place + len(content) :])
    tried(path)


def test_nesting_and_sizes_that_lie(path):
    write(path, nested('{"a":', "}"))
    assert tried(path) is None
    lying = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(EVENT)
    np.lib.format.write_array_header_1_0(lying, {"descr": descr, "fortran_order": False, "shape": (10**12,)})
    write(path, json.dumps({**HEADER, "meta": {"nodes": 1}}), ())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("node0.npy", lying.getvalue() + SOUND.nodes[0].tobytes())
    assert tried(path) is None


@pytest.mark.parametrize("name", ["node0", "header", "else"])
def test_nothing_larger_than_the_largest_trace_is_unpacked(path, monkeypatch, name):
    arrays = {"node0": SOUND.nodes[0], "header": np.frombuffer(json.dumps(HEADER).encode(), np.uint8)}
    arrays[name] = np.zeros(MOST_EVENTS + 600_000, EVENT) if name != "header" else np.zeros(2**20, np.uint8)
    np.savez_compressed(path, **arrays)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(
        UserError, match=r"trace.npz unpacks to .* bytes, more than the 2,097,152 events of the larg"
    ):
        load_trace(path)


def test_a_list_of_files_that_is_longer_than_that_of_any_trace_is_not_read(path, monkeypatch):
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number:050d}", b"")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(UserError, match="is cut short or not a trace"):
        load_trace(path)
    path.write_bytes(path.read_bytes()[:-22] + b"PK\6\7" + bytes(16) + b"PK\5\6" + bytes(18))
    with pytest.raises(UserError, match="is cut short or not a trace"):
        load_trace(path)


def test_a_trace_that_nobody_could_read_is_not_written(path, monkeypatch):
    path.unlink(missing_ok=True)
    monkeypatch.setattr("istbench.cluster.trace_file.MOST_EVENTS", 20)
    with pytest.raises(UserError, match=r"cannot write .*: \d+ events are more than the 20 of a trace"):
        save_trace(SOUND, path)
    assert not path.exists()


def test_a_pipe_for_a_trace_does_not_hang(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(UserError, match="is a pipe, not a file; give a trace, or record it again"):
        load_trace(path)
    path.unlink()
