"""Checkpoints of garbage: damage with a reason, one line, whatever stands where a file belongs."""

import copy
import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest
import torch
from garbage import damaged, nested, one_line, paths, quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node import checkpoint
from istbench.node.checkpoint_steps import Broken, Totals, find, newest, newest_whole
from istbench.studies.conformance.training import assembled, open_workload, set_up, train

TOTALS = Totals(
    step=7, train_s=1.5, wall_s=2.5, bytes_sent=4e9, bytes_received=0, computing_s=(), evaluations=0,
    evaluations_sha256="",
)  # fmt: skip
PLAIN = {"step": 7, "train_s": 1.5, "wall_s": 2.5, "bytes_sent": 4e9, "bytes_received": 0}
STATE = {"method": {"steps": 7, "model": {"weight": torch.ones(2, 3)}, "none": None}, "random": torch.arange(4)}


@pytest.fixture
def written(tmp_path):
    """A directory with a checkpoint of rank 0 at step 7."""
    directory = tmp_path / "checkpoint"
    checkpoint.publish(directory, TOTALS, checkpoint.write_rank(directory, 7, 0, STATE))
    return directory


def test_what_is_written_comes_back(written):
    assert newest(written).totals == newest_whole(written).totals == TOTALS
    state = checkpoint.read_whole(newest(written), 0)
    assert torch.equal(state["method"]["model"].pop("weight"), torch.ones(2, 3))
    assert torch.equal(state.pop("random"), torch.arange(4))
    assert state == {"method": {"steps": 7, "model": {}, "none": None}}
    assert newest(written / "nowhere") is None


def test_what_is_a_link_is_left(written, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (written / "link").symlink_to(tmp_path / "elsewhere")
    (written / "3").symlink_to(tmp_path / "elsewhere")
    files = checkpoint.write_rank(written, 9, 0, STATE)
    checkpoint.publish(written, msgspec.structs.replace(TOTALS, step=9), files)
    assert sorted(path.name for path in written.iterdir()) == ["3", "9", "latest.json", "link"]
    assert (tmp_path / "elsewhere").is_dir()


def in_place(make):
    def change(path):
        path.unlink()
        make(path)

    return change


ODD_FILES = {
    "gone": lambda path: None,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "empty": Path.touch,
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "not JSON": lambda path: path.write_text("{"),
    "a list": lambda path: path.write_text("[]"),
    "a number": lambda path: path.write_text("NaN"),
    "deep": lambda path: path.write_text(nested("[", "]")),
    "large": lambda path: (path.touch(), os.truncate(path, 2**40)),
}


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("name", ["latest.json", "7/manifest.json", "7/rank-0.json", "7/rank-0.safetensors"])
def test_a_file_that_is_none_is_named(written, name, kind):
    in_place(ODD_FILES[kind])(written / name)
    found = find(written)[0]
    if not isinstance(found, Broken):
        with pytest.raises(Broken) as caught:
            checkpoint.read_whole(found, 0)
        found = caught.value
    assert one_line(found).startswith(f"{written / name} is broken (")


@quick(150)
@given(damaged({**PLAIN, "computing_s": [1.0], "evaluations": 0, "evaluations_sha256": ""}))
def test_totals_are_totals_or_refused(tmp_path_factory, content):
    directory = tmp_path_factory.mktemp("checkpoint")
    contents = json.dumps({"cell": directory.parent.name, "totals": content, "files": {}})
    digest = hashlib.sha256(contents.encode()).hexdigest()
    (directory / "7").mkdir()
    (directory / "7" / "manifest.json").write_text(f'{{"sha256": "{digest}", "contents": {contents}}}')
    try:
        totals = newest(directory).totals
    except UserError as error:
        assert f"delete {directory}" in one_line(error)  # noqa: PT017  (either is right)
    else:
        assert isinstance(totals.step, int)
        numbers = [getattr(totals, name) for name in PLAIN] + list(totals.computing_s)
        assert all(0 <= number < 2**80 for number in numbers)  # false for NaN


@quick(150)
@given(st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=8)), max_size=3), st.integers(0, 400))
def test_tensors_are_read_or_refused(tmp_path_factory, changes, length):
    """Also under a manifest that lists the changed file."""
    directory = tmp_path_factory.mktemp("checkpoint")
    checkpoint.write_rank(directory, 7, 0, STATE)
    path = directory / "7" / "rank-0.safetensors"
    content = bytearray(path.read_bytes())
    for at, values in changes:
        content[at : at + len(values)] = values
    path.write_bytes(content[:length])
    try:
        state = checkpoint.read_rank(directory, 7, 0)
    except Broken as broken:
        assert f"{directory}/7/rank-0." in one_line(broken)  # noqa: PT017  (either is right)
    else:
        assert state.keys() == STATE.keys()


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/7"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write the checkpoint .*: (File exists|Not a directory); fix this"):
        checkpoint.write_rank(tmp_path / "checkpoint", 7, 0, STATE)


NO_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000 bytes."),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: type(error).__name__)
def test_a_lack_of_memory_is_no_damage(written, monkeypatch, error):
    def fail(path):
        raise error

    with pytest.raises(type(error)) as raised, checkpoint.fitting(written):
        raise error
    assert raised.value is error
    monkeypatch.setattr(checkpoint, "load_file", fail)
    with pytest.raises(type(error)) as raised:
        checkpoint.read_whole(newest(written), 0)
    assert raised.value is error


METHODS = [
    ("ddp", {"momentum": 0.9}),
    ("zero", {"momentum": 0.9}),
    ("fsdp", {"optimizer": "adam"}),
    ("local_sgd", {"momentum": 0.9}),
    ("diloco", {}),
    ("streaming_diloco", {"send": "int8"}),
    ("sparseloco", {"chunk": 9, "top": 2, "optimizer": "sgd"}),
    ("noloco", {"optimizer": "sgd"}),
    ("ist", {"momentum": 0.9}),
    ("ist", {"optimizer": "adamw"}),
    ("streaming_ist", {"momentum": 0.9}),
    ("p3", {"optimizer": "adam", "slice_params": 30}),  # parameter_server keeps the same
    ("model_parallel", {"momentum": 0.9, "optimizer": "sgd"}),
    ("dslide", {"target_active": 3}),  # sampled_softmax keeps less
]
WIDE = ("model_parallel", "dslide")
JUNK = [None, "x", [], {}, True, [None], {"0": "x"}]
COUNTS = ("steps", "round", "slice_params", "window")


def plain(state):
    """`state` with tensors left in their places, by a copy of its dictionaries and lists alone."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list | tuple) else state


def spoilt(state):
    """(where, `state` with one part replaced or left out), for every part of it, each by some of what is junk."""
    for number, path in enumerate(list(paths(state))[1:]):
        junk = [*JUNK, torch.zeros(99), -1 if path[-1] in COUNTS else None, KeyError]
        for value in junk[number % 3 :: 3]:
            broken = plain(state)
            owner = broken
            for key in path[:-1]:
                owner = owner[key]
            if value is KeyError:
                del owner[path[-1]]
            else:
                owner[path[-1]] = copy.deepcopy(value)
            yield path, broken


def node_that_takes_over_garbage(fabric):
    """What `taking_over_garbage` finds of each of `METHODS`."""
    return [taking_over_garbage(fabric, *method) for method in METHODS]


def taking_over_garbage(fabric, name, options):
    """States that neither fit nor are refused in one line, and how many were refused."""
    sizes = {"hidden": 3, "features": 9, "labels": 7, "points": 256}
    workload = (
        open_workload("amazon670k", sizes) if name in WIDE else open_workload("toy", {"hidden": 3, "layers": 2})
    )
    method = set_up(fabric, workload, name, options)
    train(fabric, workload, method, 0, 3)
    state = plain(method.state_dict())
    wrong, refusals = [], 0
    for path, broken in spoilt(state):
        method = set_up(fabric, workload, name, options)
        try:
            with checkpoint.fitting(Path("/checkpoint")):
                method.load_state_dict(broken)
            train(fabric, workload, method, 3, 5)
            method.drain()
            assembled(fabric, method)
        except UserError as error:
            refusals += 1
            if "delete /checkpoint to start" not in one_line(error):
                wrong.append([list(map(str, path)), str(error)])
        except Exception as error:
            wrong.append([list(map(str, path)), repr(error)])
    return wrong, refusals


@pytest.fixture(scope="module")
def taken_over():
    return on_nodes(node_that_takes_over_garbage, 1)[0]


@pytest.mark.processes
@pytest.mark.parametrize("number", range(len(METHODS)), ids=[name for name, _ in METHODS])
def test_a_method_goes_on_from_its_state_or_refuses_it(taken_over, number):
    wrong, refusals = taken_over[number]
    assert wrong == []
    assert refusals > 20
