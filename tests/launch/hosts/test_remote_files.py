"""Run directories put together beside their place, and how far runs are."""

import shutil

import msgspec
import pytest
from agent_here import AgentHere
from fake_runs import header
from published_steps import list_files, publish_step, write_step

from istbench.base.decode import decode_own
from istbench.base.errors import UserError
from istbench.launch.hosts.remote_files import beside, how_far, place, safe, write
from istbench.launch.hosts.run_copies import bring, fetch_newer
from istbench.results.header import Header
from istbench.results.store import RunDirectory


def put(path, name, content, offset=0):
    write(None, {"folder": beside(path), "name": name, "offset": offset, "content": content, "changed": None})


def test_what_was_put_together_stands_there_whole_instead_of_what_was(tmp_path):
    path = tmp_path / "results" / "runs" / "cell"
    path.mkdir(parents=True)
    (path / "old").write_text("old")
    put(path, "checkpoint/10/rank-0.json", b"cd", 2)  # parts come in any order
    put(path, "checkpoint/10/rank-0.json", b"ab")
    assert list_files(path) == [("old", 3)]
    place(path)
    assert list_files(path) == [("checkpoint/10/rank-0.json", 4)]
    assert [found.name for found in (tmp_path / "results").iterdir()] == ["runs"]


def test_a_run_that_is_brought_has_nothing_of_an_attempt_that_broke_off(tmp_path):
    here, theirs = tmp_path / "here" / "runs" / "cell", tmp_path / "there" / "runs" / "cell"
    here.mkdir(parents=True)
    (here / "run.json").write_text("{}")
    put(theirs, "checkpoint/10/rank-0.json", b"stale")
    assert bring(AgentHere(), here, str(theirs))
    assert list_files(theirs) == [("run.json", 2)]
    assert not bring(AgentHere(), here, str(theirs))  # no further than what is there


def header_of(path, cell):
    path.mkdir(parents=True)
    head = header(method="ist", status="running", cell=cell, result=None)
    RunDirectory(path).create(msgspec.convert(head, Header, dec_hook=decode_own))


@pytest.mark.parametrize("kind", ["header", "checkpoint"])
@pytest.mark.parametrize("place", ["here", "there"])
def test_a_run_of_another_cell_replaces_none_and_is_replaced_by_none(tmp_path, kind, place):
    paths = {name: tmp_path / name / "runs" / "cell" for name in ("here", "there")}
    foreign, own = paths.pop(place), *paths.values()
    header_of(own, "cell")
    write_step(own / "checkpoint", 30, {"rank-0.json": b"{}"})
    publish_step(own / "checkpoint", 30)
    header_of(foreign, "other" if kind == "header" else "cell")
    write_step(tmp_path / "other" / "checkpoint", 40, {"rank-0.json": b"{}"})
    publish_step(tmp_path / "other" / "checkpoint", 40)
    if kind == "checkpoint":
        shutil.copytree(tmp_path / "other" / "checkpoint", foreign / "checkpoint")
    before, said = list_files(tmp_path), "" if place == "here" else "host: "
    for act in (bring, lambda first, here, theirs: fetch_newer(first, theirs, here)):
        with pytest.raises(UserError, match=f"^{said}{foreign}/.* is of cell other and lies in the directory of"):
            act(AgentHere(), tmp_path / "here/runs/cell", str(tmp_path / "there/runs/cell"))
    assert list_files(tmp_path) == before


def test_a_copy_of_a_run_that_starts_again_replaces_that_of_another_cell(tmp_path):
    here, there = (tmp_path / name / "runs" / "cell" for name in ("here", "there"))
    for path, cell in ((here, "other"), (there, "cell")):
        header_of(path, cell)
        write_step(tmp_path / cell / "checkpoint", 40, {"rank-0.json": b"{}"})
        publish_step(tmp_path / cell / "checkpoint", 40)
        shutil.copytree(tmp_path / cell / "checkpoint", path / "checkpoint")
    fetch_newer(AgentHere(), str(there), here, again=True)
    assert list_files(here) == list_files(there)
    assert how_far(here) == [1, 0, 40]


def test_links_are_left_out(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert list_files(tmp_path) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_names_outside_of_the_directory_are_not_safe(name):
    assert not safe(name)


def test_a_later_checkpoint_is_further(tmp_path):
    assert how_far(tmp_path) == [0, 0, 0]
    (tmp_path / "run.json").write_text("{}")
    assert how_far(tmp_path) == [1, 0, 0]
    write_step(tmp_path / "checkpoint", 30, {"rank-0.json": b"{}"})
    assert how_far(tmp_path) == [1, 0, 0]
    publish_step(tmp_path / "checkpoint", 30)
    assert how_far(tmp_path) == [1, 0, 30]
