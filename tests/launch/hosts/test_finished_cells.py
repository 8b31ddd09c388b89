"""Whether a cell over hosts is done, found without training; and that no other cell is taken for it."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fake_runs import RESULT

from istbench.base.decode import encode_own
from istbench.base.options.elastic import Elastic
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.hosts import finished_cells as ssh_finished
from istbench.launch.hosts.answer_program import cell_name
from istbench.launch.hosts.finished_cells import finished, runs_alike
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.run import HostsRun
from istbench.results.store import RunDirectory

REQUEST = RunRequest(workload="toy", method="ist", nodes=2, seed=1, steps=20, threads=1)
OTHERS = [
    {"steps": 21}, {"seed": 2}, {"nodes": 1}, {"threads": 2}, {"batch_size": 7}, {"target": 0.5},
    {"eval_every": Interval(steps=3)}, {"max_seconds": 9.0}, {"method": "ddp"}, {"method_options": {"lr": "0.5"}},
    {"workload_options": {"hidden": "8"}}, {"steps": None, "epochs": 3.0}, {"amp": "bf16"}, {"compile": True},
    {"channels_last": True},
]  # fmt: skip
IDS = [next(iter(other)) for other in OTHERS]


def asked(request):
    """The request as a host gets it."""
    there = HostsRun(request=request, out=Path("out")).request_there({}, None)
    return json.loads(json.dumps(msgspec.to_builtins(there, enc_hook=encode_own)))


def name_of(request):
    return cell_name(asked(request))


def test_the_name_is_that_of_the_run():
    assert name_of(REQUEST) == prepare_cell(REQUEST, lambda *_: None).cell


@pytest.mark.parametrize("other", OTHERS, ids=IDS)
def test_options_that_change_the_cell_change_the_name(other, monkeypatch):
    monkeypatch.setattr("istbench.launch.cells.resolve.refuse", lambda _: None)
    assert name_of(msgspec.structs.replace(REQUEST, **other)) not in (None, name_of(REQUEST))


def test_what_cannot_run_has_no_name():
    assert name_of(msgspec.structs.replace(REQUEST, method_options={"no_such": "1"})) is None
    assert cell_name({"method": "ist"}) is None


@pytest.mark.processes
def test_the_program_that_hosts_run_answers_beside_what_plugins_print(tmp_path):
    plugin = tmp_path / "loud.py"
    plugin.write_text("print('[null]')\n")
    loud = msgspec.structs.replace(REQUEST, plugins=(str(plugin),))
    done = subprocess.run(
        [sys.executable, "-m", "istbench.launch.hosts.answer_program", "names"],
        input=json.dumps([asked(loud), {}]), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert json.loads(done.stdout) == [name_of(loud), None]


@pytest.fixture
def done(tmp_path):
    """A run directory of `REQUEST` that is done, or of another status or name."""

    def made(status="done", name=None):
        cell = prepare_cell(REQUEST, lambda *_: None)
        run = RunDirectory.of(tmp_path, name or cell.cell)
        run.create(msgspec.structs.replace(cell, status=status, result=RESULT))
        return run

    return made


def test_runs_that_could_be_it_are_those_that_are_done_and_of_its_options(done, tmp_path):
    assert runs_alike(REQUEST, tmp_path) == set()
    name = done().path.name
    assert runs_alike(REQUEST, tmp_path) == {name}
    assert runs_alike(msgspec.structs.replace(REQUEST, threads=None, steps=None), tmp_path) == {name}
    for other in ({"steps": 21}, {"seed": 2}, {"threads": 2}, {"target": 0.5}, {"amp": "bf16"}, {"device": "cuda"}):
        assert runs_alike(msgspec.structs.replace(REQUEST, **other), tmp_path) == set()


def test_an_elastic_run_that_is_done_could_be_it(tmp_path):
    elastic = msgspec.structs.replace(REQUEST, elastic=Elastic.decode("1:2"))
    cell = prepare_cell(elastic, lambda *_: None)
    RunDirectory.of(tmp_path, cell.cell).create(msgspec.structs.replace(cell, status="done", result=RESULT))
    assert runs_alike(elastic, tmp_path) == {cell.cell}
    assert runs_alike(REQUEST, tmp_path) == set()


def test_the_key_of_a_detached_cell_has_whole_paths(tmp_path, monkeypatch):
    keys = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        asked = msgspec.structs.replace(REQUEST, data=Path("data"), plugins=("mine.py",))
        keys.append(HostsRun(request=asked, out=Path("out")).key)
    assert keys[0] != keys[1]


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_a_run_that_is_not_done_is_not_shown(done, tmp_path, status):
    done(status)
    assert runs_alike(REQUEST, tmp_path) == set()


def test_a_copied_run_directory_is_not_the_cell_of_its_name(done, tmp_path):
    done(name="toy-ist-n2-s1-00000000")
    assert runs_alike(REQUEST, tmp_path) == set()


def ask(request, out):
    run = HostsRun(request=request, out=out, hosts=(Host("a"), Host("b")), pythons=["python3"])
    (found,) = finished([run], print)
    return None if found is None else found.path.name


def test_nobody_is_asked_where_nothing_could_be_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # without ssh, asking is an error
    assert ask(REQUEST, tmp_path) is None


def test_only_the_run_that_hosts_name_is_shown(done, tmp_path, monkeypatch):
    """Data, plug-ins and code are theirs: what they change, no option tells."""
    run = done()
    monkeypatch.setattr(ssh_finished, "_names", lambda cells, *_: [run.path.name])
    assert ask(REQUEST, tmp_path) == run.path.name
    for named in (["toy-ist-n2-s1-00000000"], [None], []):
        monkeypatch.setattr(ssh_finished, "_names", lambda cells, *_, named=named: named)
        assert ask(REQUEST, tmp_path) is None
