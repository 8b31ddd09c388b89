"""What a host answers over its standard streams, with bytes of files as they are."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import istbench
from istbench.launch.hosts import agent_program, remote_actions
from istbench.launch.hosts import connection as ssh_connection
from istbench.launch.hosts.connection import Frame, Lost, connected
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.remote_files import PART, beside
from istbench.launch.hosts.remote_programs import program

CONTENT = bytes(range(256)) * 8 + b"\n\r\n" + agent_program.MARK.encode() + b"{}\n"


@pytest.fixture
def own_host(tmp_path, monkeypatch):
    """A host that is this machine: its `ssh` runs the command here."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\necho welcome\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with connected([Host("here")], [sys.executable]) as ((found,), events):
        found.greet()
        yield found, events


@pytest.mark.processes
def test_files_come_and_go_as_they_are(own_host, tmp_path):
    host, _ = own_host
    run, other = tmp_path / "a" / "runs" / "cell", tmp_path / "b" / "runs" / "cell"
    run.mkdir(parents=True)
    (run / "bytes").write_bytes(CONTENT)
    (run / "none").touch()
    assert host.do("read", path=str(run), name="bytes", offset=0) == CONTENT
    assert host.do("read", path=str(run), name="bytes", offset=5) == CONTENT[5:]
    assert host.do("read", path=str(run), name="none", offset=0) == b""
    for name, content in (("bytes", CONTENT * (PART // len(CONTENT))), ("none", b"")):
        host.do("write", folder=str(beside(other)), name=name, offset=0, content=content, changed=1)
    host.do("place", path=str(other))
    assert (other / "bytes").read_bytes() == CONTENT * (PART // len(CONTENT))
    assert (other / "none").read_bytes() == b""
    assert isinstance(host.do("clock"), float)  # and lines go on after bytes


def test_a_request_that_the_istbench_there_does_not_know_names_the_way_out():
    out = io.StringIO()
    agent_program.Agent(out, {}).answer({"id": 3, "do": "fly", "of": remote_actions.__name__})
    assert json.loads(out.getvalue().removeprefix(agent_program.MARK)) == {
        "id": 3,
        "error": "the istbench there is of another version and cannot fly; install the same on every host",
    }


def test_a_long_error_fits_into_a_message():
    def fail(*_):
        raise OSError("a" * 10**6)

    out = io.StringIO()
    agent_program.Agent(out, {"fail": fail}).answer({"id": 3, "do": "fail"})
    frame = msgspec.json.decode(out.getvalue().removeprefix(agent_program.MARK), type=Frame)
    assert frame.error == "a" * 4096


@pytest.mark.processes
def test_a_name_that_is_not_utf_8_comes_with_question_marks(own_host, tmp_path):
    host, _ = own_host
    facts = host.do("facts", folder=str(tmp_path), paths=["a\udcff"], out="out", marker="none")
    assert facts["missing"] == ["a?"]


def test_a_host_reports_the_cores_of_its_cpu_quota(tmp_path, monkeypatch):
    monkeypatch.setattr("istbench.base.machine.cores", lambda: 3)
    question = {"folder": str(tmp_path), "paths": [], "out": "out", "marker": "none"}
    monkeypatch.chdir(tmp_path)
    assert agent_program.facts(None, question)["cores"] == 3


STARTS = re.compile(r'(?:sys\.executable|"python"\)),\s*(?:"-u",\s*)?("-[^"]*"|\*)')


def test_every_python_of_istbench_starts_with_p():
    starts = {
        f"{path.name}: {option}"
        for path in Path(istbench.__file__).parent.rglob("*.py")
        for option in STARTS.findall(path.read_text(encoding="utf-8"))
    }
    assert len(starts) >= 8
    assert [start for start in starts if not start.endswith('"-P"')] == []


@pytest.mark.processes
def test_a_host_imports_no_file_of_the_folder_it_starts_in(tmp_path, monkeypatch):
    """Neither the agent, at its start and at its requests, nor the Pythons that it starts."""
    for name in ("json", "queue", "socket", "runpy", "msgspec", "istbench", "torch", "fcntl"):
        (tmp_path / f"{name}.py").write_text("open('EXECUTED', 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    with connected([Host("here", local=True)], [sys.executable]) as ((host,), _):
        host.greet()
        facts = host.do("facts", folder=str(tmp_path), paths=[], out="out", marker="none")
        assert facts["istbench"] == istbench.__version__
        assert host.do("run_programs", 100.0, **program("names", typed=[])) == [[]]
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.processes
def test_bytes_that_break_off_are_no_answer(tmp_path, monkeypatch):
    """Else a part of a file would take the place of all of it."""
    ssh = tmp_path / "ssh"
    said = (
        agent_program.MARK
        + json.dumps({"python": [3, 11]})
        + "\n"
        + agent_program.MARK
        + json.dumps({"id": 1, "bytes": 100})
        + "\n"
    )
    (tmp_path / "said").write_text(said + "short")
    ssh.write_text(f"#!/bin/sh\ncat {tmp_path}/said; sleep 0.5\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with connected([Host("here")], [sys.executable]) as ((found,), _):
        asked = found.ask("read", path="x", name="y", offset=0)
        with pytest.raises(Lost):
            found.answer(asked)


@pytest.mark.processes
def test_a_host_whose_python_was_stopped_is_given_up(own_host, monkeypatch):
    host, events = own_host
    monkeypatch.setattr(agent_program, "SILENCE_S", -1.0)
    host.beat()
    assert "it has said nothing for" in str(events.get(timeout=60).frame)


@pytest.mark.processes
def test_a_host_that_answers_beats_is_not(own_host):
    host, events = own_host
    host._heard = before = host._heard - agent_program.SILENCE_S + 5
    host.beat()
    host.do("clock")
    assert host._heard > before + 1
    assert events.empty()


@pytest.mark.processes
def test_the_program_that_is_sent_stands_alone_and_ends_with_its_questions():
    done = subprocess.run(
        [sys.executable, "-I", "-c", Path(agent_program.__file__).read_text()],
        input=b'\n{"id": 7, "do": "clock"}\n', capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith(agent_program.MARK.encode() + b'{"python": [')


def test_a_connection_names_the_module_of_the_actions():
    assert remote_actions.__name__ == ssh_connection._ACTIONS


def test_a_part_fits_into_what_is_read_at_once():
    assert PART <= ssh_connection._MOST_BYTES
