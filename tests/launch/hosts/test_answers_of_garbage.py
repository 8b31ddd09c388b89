"""Another answer of a host than the one requested is one line that names the host; no processes."""

import queue
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_here import AgentHere

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.hosts import detached, finished_cells, group
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.links import measure_together
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.push import push
from istbench.launch.hosts.run import HostsRun
from istbench.launch.hosts.run_copies import fetch, fetch_newer

RUN = HostsRun(request=RunRequest(workload="toy", method="ist"), out=Path("out"), hosts=[Host("host")])
OFFER = {"incoming": "in", "missing": [], "free": 5, "folder": "there"}


class Wrong(AgentHere):
    """A host that gives wrong `answers` to some actions."""

    def __init__(self, name="host", **answers):
        super().__init__(name)
        self.answers = answers

    def act(self, do, arguments):
        return self.answers[do] if do in self.answers else super().act(do, arguments)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("part", ["eA==", 5, None, ["x"]])
def test_a_part_of_a_file_is_bytes(tmp_path, part):
    there, here = (tmp_path / name / "runs" / "cell" for name in ("there", "here"))
    there.mkdir(parents=True)
    (there / "run.json").write_text("{}")
    with pytest.raises(UserError, match="^host: its answer must be bytes, not "):
        fetch(Wrong(read=part), str(there), here)
    assert not here.exists()


@pytest.mark.parametrize("changed", [2**63, 1.5])
def test_a_time_of_a_file_has_bounds(tmp_path, changed):
    listing = {"files": [["run.json", 2, changed]], "steps": [], "damaged": False}
    with pytest.raises(UserError, match=r"^host: files\[0\]\[2\] "):
        fetch(Wrong(list_run=listing), "there", tmp_path / "runs" / "cell")


@pytest.mark.parametrize("far", [None, 5, {}, [0, 0], [1, 1, "9"], [1, 1, -1]])
def test_the_progress_of_a_run_is_three_numbers(tmp_path, far):
    with pytest.raises(UserError, match="^host: .* must "):
        fetch_newer(Wrong(how_far=far), "there", tmp_path / "runs" / "cell")


@pytest.mark.parametrize(
    "answers",
    [
        {"expect_tree": None},
        {"expect_tree": {}},
        {"expect_tree": {**OFFER, "missing": 7}},
        {"expect_tree": {**OFFER, "free": "much"}},
        {"expect_tree": {**OFFER, "incoming": ["in"]}},
        {"expect_tree": OFFER, "finish_tree": None},
    ],
)
def test_an_offer_for_a_tree_has_its_types(tmp_path, answers):
    (tmp_path / "data").write_bytes(b"data")
    with pytest.raises(UserError, match=r"^host: \S.* (must be|is missing)"):
        push([Wrong(digest_tree=None, **answers)], [str(tmp_path / "data")], print)


def test_content_that_is_not_in_the_tree_is_not_sent(tmp_path):
    (tmp_path / "data").write_bytes(b"data")
    answers = {"expect_tree": {**OFFER, "missing": ["0" * 64]}, "finish_tree": "there/data"}
    there = push([Wrong(digest_tree=None, **answers)], [str(tmp_path / "data")], print)
    assert there == {"host": {str(tmp_path / "data"): "there/data"}}


@pytest.fixture
def connect(monkeypatch):
    """Lets all commands on hosts find one host."""

    def to(host):
        for module in (detached, finished_cells):
            monkeypatch.setattr(module, "connected", lambda *_: nullcontext(((host,), queue.SimpleQueue())))
            monkeypatch.setattr(module, "survey", lambda *_, **__: ({}, {}))

    return to


@pytest.mark.parametrize("answer", ["no", None, 1])
def test_whether_a_cell_runs_detached_is_true_or_false(connect, monkeypatch, answer):
    connect(Wrong(has_detached=answer, stop_detached=answer))
    monkeypatch.setattr(finished_cells, "name_cells_there", lambda *_: ["cell"])
    for act in (lambda: detached.stop([RUN]), lambda: finished_cells._names([RUN], print)):
        with pytest.raises(UserError, match="^host: its answer must be true or false, not "):
            act()


def test_the_results_directory_of_a_detached_cell_is_text(connect):
    connect(Wrong(follow_detached=["there"]))
    with pytest.raises(UserError, match=r"^host: its answer must be text, not \['there'\]$"):
        detached.follow(RUN, print)


@pytest.mark.parametrize("clock", ["soon", None, -1.0, float("nan")])
def test_a_clock_is_a_number(clock):
    with pytest.raises(UserError, match="^host: its answer must be a number"):
        group._clocks([Wrong(clock=clock)])


def test_a_rate_of_a_link_is_a_number():
    hosts = [Wrong(name, listen=4000, bandwidth="fast") for name in "ab"]
    with pytest.raises(UserError, match="^a: its answer must be a number, not 'fast'$"):
        measure_together(hosts, {"a": "10.0.0.1", "b": "10.0.0.2"}, 1.0, [])


def test_every_address_is_tested(monkeypatch):
    facts = {name: SimpleNamespace(addresses=["10.0.0.1"]) for name in "ab"}
    monkeypatch.setattr(group, "survey", lambda *_, **__: (facts, {}))
    with pytest.raises(Unfit, match="^a: it tested another number of addresses than it was sent"):
        group.gather([Wrong(name, listen=4000, try_connections=[]) for name in "ab"], Path("out"))
