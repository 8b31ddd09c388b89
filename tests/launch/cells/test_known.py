"""Finished cells that show without resolving: only while nothing that names a cell has changed."""

import os
from pathlib import Path

import msgspec
import pytest
from fake_runs import RESULT

from istbench.base.options.run import RunRequest
from istbench.launch.cells import known
from istbench.launch.cells.known import finished, remember, states
from istbench.launch.cells.resolve import prepare_cell
from istbench.results.store import RunDirectory, time_now

REQUEST = RunRequest(workload="toy", method="diloco", nodes=2, steps=3)


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """The cell of `REQUEST`, which this machine remembers, with a finished run."""
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / "cache"))
    resolved = prepare_cell(REQUEST, lambda *_: None)
    keep(REQUEST, resolved)
    write_run(tmp_path, resolved, "done")
    return resolved


def keep(request, cell):
    (state,) = states([request])
    remember(request, cell, state)


def write_run(out, cell, status):
    run = RunDirectory.of(out, cell.cell)
    run.path.mkdir(parents=True, exist_ok=True)
    run.create(msgspec.structs.replace(cell, status=status, started_at=time_now(), result=RESULT))


def test_a_finished_cell_has_its_run_its_data_and_the_nodes_of_its_control(tmp_path, cell):
    (found,) = finished([REQUEST], tmp_path)
    assert (found.cell, found.source, found.control_nodes) == (cell.cell, cell.data_source, 1)


def test_a_run_that_is_not_done_or_elsewhere_is_resolved(tmp_path, cell):
    assert finished([REQUEST], tmp_path / "elsewhere") is None
    write_run(tmp_path, cell, "interrupted")
    assert finished([REQUEST], tmp_path) is None


def test_a_damaged_run_is_left_to_the_error_of_resolving(tmp_path, cell):
    RunDirectory.of(tmp_path, cell.cell).run_json.write_text("{")
    assert finished([REQUEST], tmp_path) is None


@pytest.mark.parametrize("changed", [{"seed": 1}, {"steps": 4}, {"method_options": {"local_steps": 2}}])
def test_another_request_is_another_cell(tmp_path, cell, changed):
    other = msgspec.structs.replace(REQUEST, **changed)
    assert finished([other], tmp_path) is None
    assert finished([REQUEST, other], tmp_path) is None


@pytest.mark.parametrize("change", ["code", "python", "data", "device", "memory"])
def test_what_could_name_another_cell_has_it_resolved(tmp_path, cell, monkeypatch, change):
    if change == "code":
        monkeypatch.setattr(known, "_code", lambda: ("a later istbench",))
    elif change == "python":
        monkeypatch.setattr(known, "_code", known._code.__wrapped__)
        monkeypatch.setattr(known.sys, "version", "another")
    elif change == "data":
        (tmp_path / "cache" / "toy" / "original").mkdir(parents=True)
    elif change == "device":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    else:
        (memory,) = (tmp_path / "cache" / "known-cells").iterdir()
        memory.write_text('{"cell": "../elsewhere"}')
    assert finished([REQUEST], tmp_path) is None


@pytest.mark.parametrize("folder", [False, True])
def test_a_change_of_the_given_data_has_it_resolved(tmp_path, cell, folder):
    data = tmp_path / "data" / "part" / "words.txt"
    data.parent.mkdir(parents=True)
    data.write_text("a b")
    request = msgspec.structs.replace(REQUEST, data=tmp_path / "data" if folder else data)
    keep(request, cell)
    assert finished([request], tmp_path) is not None
    data.write_text("a b c")
    assert finished([request], tmp_path) is None


def test_data_with_a_link_to_nothing_is_always_resolved(tmp_path, cell):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".#words.txt").symlink_to("a lock of an editor")
    request = msgspec.structs.replace(REQUEST, data=tmp_path / "data")
    keep(request, cell)
    assert finished([request], tmp_path) is None


def test_data_below_folders_that_are_not_utf8_is_told_apart(tmp_path, cell, monkeypatch):
    request, found = msgspec.structs.replace(REQUEST, data=Path("data")), []
    for name in (b"lat\xf6", b"lat\xfc"):
        folder = tmp_path / os.fsdecode(name)
        (folder / "data").mkdir(parents=True)
        monkeypatch.chdir(folder)
        found.append(finished([request], tmp_path))
        keep(request, cell)
        found.append(finished([request], tmp_path))
    assert [one is None for one in found] == [True, False, True, False]


@pytest.mark.parametrize("own", [{"plugins": ("mine.py",)}, {"workload": "mine.py"}, {"method": "a plug-in's"}])
def test_code_of_others_is_always_resolved(tmp_path, cell, own):
    request = msgspec.structs.replace(REQUEST, **own)
    keep(request, cell)
    assert finished([request], tmp_path) is None


def test_saved_weights_and_recorded_trials_are_always_resolved(tmp_path, cell):
    for own in ({"save": tmp_path / "weights"}, {"tuned": 5}):
        request = msgspec.structs.replace(REQUEST, **own)
        keep(request, cell)
        assert finished([request], tmp_path) is None


def test_a_cache_that_cannot_be_written_remembers_nothing(tmp_path, cell, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / "file"))
    keep(REQUEST, cell)
    assert finished([REQUEST], tmp_path) is None
