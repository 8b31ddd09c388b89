"""A run directory brought home while it is written: only what is new, and never half of a checkpoint."""

import io
import json
import shutil
from pathlib import Path

import pytest

from istbench.launch.ssh import remote_files
from istbench.launch.ssh.connection import Refused
from istbench.launch.ssh.files import bring, fetch
from istbench.launch.ssh.hello import Agent
from istbench.launch.ssh.remote import ACTIONS
from istbench.launch.ssh.remote_files import list_files


class OtherHost:
    """Does as a host does that is asked; `read` are the names of files and how much of each was read."""

    def __init__(self):
        self.read = []
        self.name, self.agent = "other", Agent(io.StringIO())

    def do(self, do, **rest):
        try:
            found = ACTIONS[do](self.agent, rest)
        except OSError as error:
            raise Refused(str(error)) from None
        if do == "read":
            self.read.append((rest["name"], rest["offset"]))
        return found


class Run:
    """A run directory that is written as istbench does."""

    def __init__(self, path):
        self.path = path
        path.mkdir(parents=True)
        (path / "run.json").write_text("{}")

    def evaluate(self, step):
        with (self.path / "events.jsonl").open("a") as events:
            events.write(json.dumps({"step": step}) + "\n")

    def write(self, step):
        for rank in range(2):
            part = self.path / "checkpoint" / str(step) / f"rank-{rank}.json"
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(f"{step} of {rank}")

    def publish(self, step):
        latest = self.path / "checkpoint" / "latest.json"
        (self.path / "latest").write_text(json.dumps({"step": step}))
        (self.path / "latest").replace(latest)
        for folder in latest.parent.iterdir():
            if folder.is_dir() and folder.name != str(step):
                shutil.rmtree(folder)

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
    step = json.loads((path / "checkpoint" / "latest.json").read_text())["step"]
    assert [(path / f"checkpoint/{step}/rank-{rank}.json").read_text() for rank in range(2)] == [
        f"{step} of {rank}" for rank in range(2)
    ]
    assert json.loads((path / "events.jsonl").read_text().splitlines()[-1])["step"] >= step
    return step


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


def test_a_checkpoint_that_is_not_published_stays_there(there, here):
    there.go_on(10)
    there.evaluate(20)
    there.write(20)
    (there.path / "run.json.7.tmp").write_text("{")
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 10
    assert sorted(path.name for path in (here / "checkpoint").iterdir()) == ["10", "latest.json"]
    assert not (here / "run.json.7.tmp").exists()
    there.publish(20)
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 20
    assert sorted(path.name for path in (here / "checkpoint").iterdir()) == ["20", "latest.json"]


class GoesOn(OtherHost):
    """A host whose run publishes a checkpoint whenever a part of a file is read."""

    def __init__(self, run):
        super().__init__()
        self._run, self._step = run, 10

    def do(self, do, **rest):
        if do == "read":
            self._step += 10
            self._run.go_on(self._step)
        return super().do(do, **rest)


def test_a_checkpoint_comes_whole_though_it_is_replaced_meanwhile(there, here):
    there.go_on(10)
    host = GoesOn(there)
    fetch(host, str(there.path), here)
    assert step_of(here) == 10
    fetch(host, str(there.path), here)
    assert 10 < step_of(here) < step_of(there.path)
    assert not (there.path.parent.parent / "fetched").exists()


def test_without_hard_links_a_checkpoint_that_was_deleted_is_not_brought(there, here, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(remote_files.os, "link", link)
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    there.go_on(20)
    with pytest.raises(Refused):
        fetch(GoesOn(there), str(there.path), here)
    assert step_of(here) == 10


@pytest.fixture
def breaks_off(monkeypatch):
    """Brings a run home, and is ended after so many files have taken their places."""
    replace = Path.replace

    def fetched(path, here, after):
        def once_more(file, target):
            nonlocal after
            after -= 1
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
    for placed in range(4):  # two parts and the events, then what names them
        there.go_on(20 + placed)
        breaks_off(there.path, here, placed)
        assert step_of(here) == 10
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 23
    assert list_files(here) == list_files(there.path)


def test_a_checkpoint_of_the_same_step_of_another_run_is_not_mixed_with_it(there, here, breaks_off):
    there.go_on(10)
    fetch(OtherHost(), str(there.path), here)
    shutil.rmtree(there.path)
    Run(there.path).go_on(10)
    breaks_off(there.path, here, 1)
    assert not (here / "checkpoint" / "latest.json").exists()
    fetch(OtherHost(), str(there.path), here)
    assert step_of(here) == 10


def test_a_host_that_nobody_asks_any_more_holds_nothing(there):
    there.go_on(10)
    host = OtherHost()
    host.do("hold", path=str(there.path), have=[])
    assert (there.path.parent.parent / "fetched").exists()
    host.agent.end()
    assert not (there.path.parent.parent / "fetched").exists()


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
