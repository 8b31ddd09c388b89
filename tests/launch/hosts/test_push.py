"""Data and plug-ins of this machine on a host that lacks them: only new content is sent, checked by SHA-256."""

import errno
import json
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from agent_here import AgentHere

from istbench.base.errors import UserError
from istbench.launch.hosts import push as pushing
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.push import list_tree, push, tree_digest
from istbench.launch.hosts.remote_files import PART


class OtherHost(AgentHere):
    """A host with a home directory of its own at `root`; counts written bytes."""

    def __init__(self, root, name="other"):
        super().__init__(name)
        self.root, self.bytes = root, 0

    def act(self, do, arguments):
        if do == "write":
            self.bytes += len(arguments["content"])
        if "path" in arguments:  # the same path on another machine
            arguments["path"] = f"{self.root}/{arguments['path']}"
        return json.loads(json.dumps(super().act(do, arguments)))


@pytest.fixture
def host(tmp_path):
    (tmp_path / "host").mkdir()
    return OtherHost(tmp_path / "host")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(3 * PART + 5))
    (folder / "inner" / "empty").write_bytes(b"")
    (folder / "inner" / "one").write_bytes(b"same")
    (folder / "two").write_bytes(b"same")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked").write_bytes(b"linked")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "link" / "up").symlink_to(folder)
    return folder


def sent(host, *paths):
    """The places on `host`, the bytes sent, and the lines said."""
    host.bytes, said = 0, []
    found = push([host], [str(path) for path in paths], said.append)
    return found[host.name], host.bytes, said


def test_a_directory_comes_whole_and_then_only_its_changes(host, data):
    places, size, (line,) = sent(host, data)
    place = places[str(data)]
    assert size == 3 * PART + 5 + len("same") + len("linked")
    assert tree_digest(list_tree(Path(place))) == tree_digest(list_tree(data))
    assert line.startswith(f"copied {data} to other: 3.1 MB in ")
    assert (data / "two").stat().st_mtime_ns == Path(place, "two").stat().st_mtime_ns
    assert sent(host, data) == (places, 0, [])

    (data / "two").write_bytes(b"changed")
    after, size, _ = sent(host, data)
    assert size == len("changed")
    assert after != places
    assert Path(place, "two").read_bytes() == b"same"  # a run may still read it


def test_a_directory_that_has_two_names_comes_under_both(host, tmp_path):
    data = tmp_path / "data"
    (data / "pool").mkdir(parents=True)
    (data / "pool" / "one").write_bytes(b"one")
    (data / "train").symlink_to("pool")
    places, size, _ = sent(host, data)
    assert sorted(name for name, *_ in list_tree(Path(places[str(data)]))) == ["pool/one", "train/one"]
    assert size == len("one")


def test_equal_content_at_the_same_path_is_used_in_place(host, data):
    there = host.root / str(data).lstrip("/")
    there.parent.mkdir(parents=True)
    shutil.copytree(data, there, ignore=lambda folder, names: {"up"} & set(names))
    assert sent(host, data) == ({}, 0, [])
    (there / "two").write_bytes(b"other")
    places, size, _ = sent(host, data)
    assert (list(places), size) == ([str(data)], 3 * PART + 5 + len("same") + len("linked"))


def test_a_plugin_is_a_tree_of_one_file_and_keeps_its_name(host, tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text("x = 1\n")
    places, _, _ = sent(host, plugin, tmp_path / "no such")
    assert list(places) == [str(plugin)]
    place = Path(places[str(plugin)])
    assert (place.name, place.read_text()) == ("own.py", "x = 1\n")


def test_a_folder_typed_by_dots_has_its_own_name_there(host, data):
    typed = f"{data}/inner/.."
    assert Path(push([host], [typed], print)["other"][typed]).name == "data"


def test_only_this_user_can_read_what_came(host, data, cache):
    sent(host, data)
    assert (cache / "pushed").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (cache / "pushed").rglob("*") if path.is_file()} == {0o600}


def test_content_that_changes_on_its_way_is_refused_and_leaves_nothing(host, data, cache, monkeypatch):
    listed = [(name, size, changed, "0" * 64) for name, size, changed, _ in list_tree(data / "two")]
    monkeypatch.setattr(pushing, "list_tree", lambda path: listed)
    with pytest.raises(Unfit, match="^other: cannot take .*: a file changed while it was copied; run the same"):
        push([host], [str(data / "two")], print)
    host.agent.end()
    assert not [path for path in (cache / "pushed").rglob("*") if path.is_file()]


def test_a_full_disk_is_named_before_anything_is_sent(host, data, monkeypatch):
    monkeypatch.setattr(pushing.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1_000_000))
    with pytest.raises(Unfit) as unfit:
        push([host], [str(data)], print)
    (line,) = unfit.value.problems
    assert line.startswith(f"other: no space for {data}: 3.1 MB are to go to ")
    assert line.endswith(", and 1.0 MB are free; free some, or set ISTBENCH_CACHE there to a larger disk")
    assert host.bytes == 0


def test_a_file_that_cannot_be_read_here_is_named(data, host, monkeypatch):
    monkeypatch.setattr(pushing, "file_sha256", lambda path: open(path / "not a directory"))  # noqa: PTH123, SIM115
    with pytest.raises(UserError, match="^cannot read .*; give what you may read$"):
        push([host], [str(data)], print)


def test_a_listing_reads_only_files_that_changed(data, monkeypatch):
    before = list_tree(data)
    read = []
    monkeypatch.setattr(pushing, "file_sha256", lambda path: read.append(path.name) or "0" * 64)
    assert list_tree(data) == before
    assert read == []
    (data / "two").write_bytes(b"another")
    list_tree(data)
    assert read == ["two"]


def test_bytecode_that_python_writes_beside_a_plugin_is_no_change(data):
    before = tree_digest(list_tree(data))
    (data / "__pycache__").mkdir()
    (data / "__pycache__" / "plugin.cpython-311.pyc").write_bytes(b"compiled")
    assert tree_digest(list_tree(data)) == before


class Full(OtherHost):
    """A host whose disk is full after so many writes."""

    def __init__(self, root, name="other", writes=0):
        super().__init__(root, name)
        self._writes = writes

    def act(self, do, arguments):
        if do == "write":
            self._writes -= 1
            if self._writes < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().act(do, arguments)


def test_a_copy_that_breaks_off_goes_on_with_the_files_that_came_whole(tmp_path, data, host):
    broken = Full(tmp_path, writes=6)  # all but `linked`
    with pytest.raises(Unfit):
        sent(broken, data)
    broken.agent.end()
    _, size, _ = sent(host, data)
    assert size == len("linked")


def test_hosts_that_fail_are_all_named_and_the_others_are_not_waited_for(tmp_path, data):
    hosts = [Full(tmp_path / name, name) for name in "ab"]
    before = threading.active_count()
    with pytest.raises(Unfit) as unfit:
        push(hosts, [str(data)], print)
    assert [line.partition(" for ")[0] for line in unfit.value.problems] == ["a: no space", "b: no space"]
    assert threading.active_count() == before
