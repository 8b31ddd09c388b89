"""A run directory brought home while it is written: only what is new, and never half of a checkpoint."""

import json
import os
import shutil
from pathlib import Path

import pytest
from agent_here import AgentHere
from published_steps import list_files, publish_step, step_whole, write_step

from istbench.base.errors import UserError
from istbench.launch.hosts.connection import Refused
from istbench.launch.hosts.remote_files import PART
from istbench.launch.hosts.run_copies import bring, fetch


class OtherHost(AgentHere):
    """A host that keeps the names of files and the offsets that were read."""

    def __init__(self):
        super().__init__()
        self.read = []

    def act(self, do, arguments):
        found = super().act(do, arguments)
        if do == "read":
            self.read.append((arguments["name"], arguments["offset"]))
        return found


class Run:
    """A run directory that is written as istbench does.

    times: how often its parts repeat what they say.
    """

    def __init__(self, path, times=1):
        self.path, self.times = path, times
        path.mkdir(parents=True)
        (path / "run.json").write_text("{}")

    def evaluate(self, step):
        with (self.path / "events.jsonl").open("a") as events:
            events.write(json.dumps({"step": step}) + "\n")

    def write(self, step):
        files = {f"rank-{rank}.json": f"{step} of {rank}".encode() * self.times for rank in range(2)}
        write_step(self.path / "checkpoint", step, files)

    def publish(self, step):
        publish_step(self.path / "checkpoint", step)

    def go_on(self, step):
        self.evaluate(step)
        self.write(step)
        self.publish(step)


@pytest.fixture
def there(tmp_path):
    return Run(tmp_path / "there" / "runs" / "cell")


@pytest.fixture
def here(tmp_path):
    return tmp_path / "here" / "runs" / "cell"


def step_of(path):
    """The step that the run in `path` resumes from, whose checkpoint is whole and whose events come as far."""
    step = step_whole(path / "checkpoint")
    assert json.loads((path / "events.jsonl").read_text().splitlines()[-1])["step"] >= step
    return step


def steps_of(path):
    """What the checkpoint of the run in `path` has."""
    return sorted(found.name for found in (path / "checkpoint").iterdir())


def test_only_what_is_new_is_read(there, here):
    host = OtherHost()
    there.go_on(10)
    fetch(host, str(there.path), here)
    assert list_files(here) == list_files(there.path)
    host.read.clear()
    fetch(host, str(there.path), here)
    assert host.read == []

    there.evaluate(20)
    there.evaluate(30)
    fetch(host, str(there.path), here)
    before = (there.path / "events.jsonl").read_bytes()
    there.evaluate(40)
    fetch(host, str(there.path), here)
    # From the last line that is here: that it is there too says that those before it are.
    assert host.read == [("events.jsonl", 0), ("events.jsonl", before.rstrip(b"\n").rfind(b"\n") + 1)]
    assert (here / "events.jsonl").read_bytes() == (there.path / "events.jsonl").read_bytes()
    assert [path.name for path in (here.parent.parent).iterdir()] == ["runs"]


def test_a_pipe_in_the_place_of_events_is_replaced(there, here):
    there.go_on(10)
    here.mkdir(parents=True)
    os.mkfifo(here / "events.jsonl")
    fetch(OtherHost(), str(there.path), here)
    assert list_files(here) == list_files(there.path)


@pytest.mark.parametrize("place", ["checkpoint", "logs", "logs/rank0", "events.jsonl"])
def test_nothing_is_copied_through_a_link(there, here, place, tmp_path):
    there.go_on(10)
    (there.path / "logs" / "rank0").mkdir(parents=True)
    (there.path / "logs" / "rank0" / "stdout").write_text("ours")
    (here / place).parent.mkdir(parents=True)
    (tmp_path / "private").mkdir()
    (here / place).symlink_to(tmp_path / "private")
    with pytest.raises(UserError, match=f"{place} is a symbolic link"):
        fetch(OtherHost(), str(there.path), here)
    assert list((tmp_path / "private").iterdir()) == []


def test_a_checkpoint_that_is_not_published_stays_there(there, here):
    there.go_on(10)
    there.evaluate(20)
    there.write(20)
    (there.path / "run.json.7.tmp").write_text("{")
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 10
    assert steps_of(here) == ["10", "latest.json"]
    assert not (here / "run.json.7.tmp").exists()
    there.publish(20)
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 20
    assert steps_of(here) == ["10", "20", "latest.json"]
    there.go_on(30)
    fetch(OtherHost(), str(there.path), here)
    assert steps_of(here) == ["20", "30", "latest.json"]


class GoesOn(OtherHost):
    """A host whose run publishes a checkpoint whenever so many parts of its files were read."""

    def __init__(self, run, after, most=1000):
        super().__init__()
        self._run, self._after, self._most = run, after, most
        self._step = step_of(run.path)

    def act(self, do, arguments):
        if do == "read" and arguments["name"].startswith("checkpoint/") and self._most:
            self._most -= 1
            if len(self.read) % self._after == 0:
                self._step += 10
                self._run.go_on(self._step)
        return super().act(do, arguments)


def test_a_checkpoint_comes_whole_though_newer_ones_are_published_meanwhile(there, here):
    there.go_on(10)
    fetch(GoesOn(there, after=2), str(there.path), here)
    assert step_of(here) == 10
    assert step_of(there.path) > 10
    assert not (there.path.parent.parent / "fetched").exists()


def test_a_step_that_is_deleted_on_its_way_is_given_up_for_the_next_without_rests(there, here):
    there.go_on(10)
    rests = []
    fetch(GoesOn(there, after=1, most=3), str(there.path), here, lambda seconds, *_: rests.append(seconds))
    assert (step_of(here), step_of(there.path)) == (30, 40)
    given_up = rests.index(0.0)
    assert all(rest > 0 for rest in rests[:given_up])
    assert not any(rests[given_up:])


def test_a_run_that_is_always_faster_leaves_the_checkpoint_of_before(there, here):
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    there.go_on(20)
    with pytest.raises(Refused):
        fetch(GoesOn(there, after=1), str(there.path), here)
    assert (step_of(here), steps_of(here)) == (10, ["10", "latest.json"])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_step_that_is_damaged_there_does_not_come_and_the_one_before_does(there, here):
    there.go_on(10)
    there.go_on(20)
    flip(there.path / "checkpoint/20/rank-1.json")
    fetch(OtherHost(), str(there.path), here)
    assert (step_of(here), steps_of(here)) == (10, ["10", "latest.json"])


@pytest.mark.parametrize("name", ["manifest.json", "rank-1.json"])
def test_where_all_is_damaged_there_what_is_here_stays(there, here, name):
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    there.go_on(20)
    shutil.rmtree(there.path / "checkpoint" / "10")
    flip(there.path / "checkpoint" / "20" / name)
    fetch(OtherHost(), str(there.path), here)
    assert (step_of(here), steps_of(here)) == (10, ["10", "latest.json"])


class Endless(OtherHost):
    """A host that sends bytes without end, as the content of the files of which `name` is a part."""

    def __init__(self, name):
        super().__init__()
        self._name = name

    def act(self, do, arguments):
        found = super().act(do, arguments)
        assert len(self.read) < 20
        return bytes(3 * PART) if do == "read" and self._name in arguments["name"] else found


def test_a_file_of_a_checkpoint_is_no_longer_than_its_manifest_says(there, here):
    there.go_on(10)
    fetch(Endless("rank-1"), str(there.path), here)
    assert list_files(here) == [("events.jsonl", 13), ("run.json", 2)]


def test_a_file_of_a_run_is_no_longer_than_the_host_said(there, here):
    there.go_on(10)
    fetch(Endless("events"), str(there.path), here)
    assert (here / "events.jsonl").stat().st_size == PART
    assert step_whole(here / "checkpoint") == 10


def test_parts_of_many_megabytes_come_whole(tmp_path, here):
    there = Run(tmp_path / "large" / "runs" / "cell", times=300_000)
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 10
    assert (here / "checkpoint/10/rank-0.json").stat().st_size > 2 << 20


@pytest.fixture
def breaks_off(monkeypatch):
    """Brings a run home, and is ended after so many files have taken their places."""
    replace = Path.replace

    def fetched(path, here, after):
        def once_more(file, target):
            nonlocal after
            after -= Path(target).is_relative_to(here)
            if after < 0:
                raise KeyboardInterrupt
            return replace(file, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", once_more)
            with pytest.raises(KeyboardInterrupt):
                fetch(OtherHost(), str(path), here)

    return fetched


def test_wherever_it_breaks_off_there_is_a_whole_checkpoint_here(there, here, breaks_off):
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    for placed in range(3):  # the step and the events, then what names them
        there.go_on(20 + placed)
        breaks_off(there.path, here, placed)
        assert step_of(here) == 10
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 22
    assert list_files(here / "checkpoint/22") == list_files(there.path / "checkpoint/22")


def test_a_checkpoint_of_the_same_step_of_another_run_is_not_mixed_with_it(there, here, breaks_off):
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    shutil.rmtree(there.path)
    Run(there.path, times=2).go_on(10)
    breaks_off(there.path, here, 1)
    assert step_of(here) == 10
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 10
    assert (here / "checkpoint/10/rank-0.json").read_text() == "10 of 0" * 2


def test_steps_of_another_run_go_once_one_of_this_is_here(there, here):
    for step in (30, 40):
        there.go_on(step)
        fetch(OtherHost(), str(there.path), here)
    shutil.rmtree(there.path)
    Run(there.path).go_on(10)
    fetch(OtherHost(), str(there.path), here)
    assert (step_of(here), steps_of(here)) == (10, ["10", "latest.json"])


def test_what_was_brought_to_a_host_does_not_come_back(there, here, tmp_path):
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    host, other = OtherHost(), tmp_path / "other" / "runs" / "cell"
    assert bring(host, here, str(other))
    with (other / "events.jsonl").open("a") as events:
        events.write("{}\n")
    fetch(host, str(other), here)
    assert [name for name, _ in host.read] == ["events.jsonl"]


def test_events_of_another_run_are_no_beginning_of_these(there, here):
    here.mkdir(parents=True)
    (here / "events.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    for step in (5, 6, 7):
        there.evaluate(step)
    fetch(OtherHost(), str(there.path), here)
    assert (here / "events.jsonl").read_bytes() == (there.path / "events.jsonl").read_bytes()


def test_what_is_no_run_changes_nothing_here(there, here):
    (there.path / "run.json").unlink()
    here.mkdir(parents=True)
    (here / "run.json").write_text("{}")
    fetch(OtherHost(), str(there.path), here)
    assert list_files(here) == [("run.json", 2)]


def test_of_what_is_here_the_newest_whole_step_goes_to_a_host(there, tmp_path):
    there.go_on(10)
    there.go_on(20)
    other = tmp_path / "other" / "runs" / "cell"
    assert bring(OtherHost(), there.path, str(other))
    assert steps_of(other) == ["20", "latest.json"]
    shutil.rmtree(other)
    flip(there.path / "checkpoint/20/rank-1.json")
    assert bring(OtherHost(), there.path, str(other))
    assert (step_of(other), steps_of(other)) == (10, ["10", "latest.json"])
    shutil.rmtree(other)
    flip(there.path / "checkpoint/10/rank-1.json")
    with pytest.raises(UserError, match="no older one is whole; delete"):
        bring(OtherHost(), there.path, str(other))


@pytest.mark.parametrize(("mask", "folders", "files"), [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644)])
def test_what_comes_home_follows_the_umask_here(there, here, mask, folders, files):
    there.go_on(10)
    before = os.umask(mask)
    try:
        fetch(OtherHost(), str(there.path), here)
    finally:
        os.umask(before)
    found = [here, *here.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {folders}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {files}
