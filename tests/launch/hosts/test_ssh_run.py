"""Runs on hosts with their own networks and sshds, and what stands for torchrun: watched, and ended together."""

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fake_runs import header
from ssh_hosts import OTHER_PORT

from istbench.base.errors import RunFailed, UserError
from istbench.launch.hosts import run_copies
from istbench.launch.hosts.group import Unfit
from istbench.results.events import Fault, Stop
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes


def step_of(out):
    return json.loads((out / "runs/cell/checkpoint/latest.json").read_text())["step"]


@pytest.fixture
def interrupted(ask):
    """Interrupts a run as soon as it has a checkpoint; what was said."""

    def run(**changed):
        said = []

        def say(text):
            said.append(text)
            if text.startswith("at step"):
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            ask(1, say, **changed)
        return said

    return run


def test_an_interrupted_run_comes_home_and_goes_on_from_there(hosts, interrupted, tmp_path):
    assert interrupted() == ["at step 10"]
    hosts.assert_nothing_left()
    assert step_of(hosts.out) == step_of(hosts.results(0)) == 10
    assert not (hosts.results(1) / "runs").exists()
    assert sorted(path.name for path in hosts.out.iterdir()) == ["runs"]

    # Another host first: what is known of the run is on the old one, and here.
    assert interrupted(names=hosts.names[::-1]) == ["copied the earlier part of cell to host1", "at step 20"]
    assert step_of(hosts.out) == step_of(hosts.results(1)) == 20
    assert interrupted() == ["copied the earlier part of cell to host0", "at step 30"]


def test_a_directory_that_the_first_host_shares_is_written_there_alone(hosts, interrupted, tmp_path):
    assert interrupted(out=tmp_path / "shared") == ["at step 10"]
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["runs"]
    assert step_of(tmp_path / "shared") == 10


def test_what_rank_0_says_last_is_what_the_run_says(hosts, ask):
    with pytest.raises(UserError, match="^no such thing; use another$"):
        ask(2)
    hosts.assert_nothing_left()


def test_a_torchrun_that_dies_is_named_by_its_host_with_its_last_lines_and_all_end(hosts, ask):
    with pytest.raises(RunFailed) as failure:
        ask(3)
    ended, last = str(failure.value).splitlines()
    # The first host may have begun to train by then.
    assert re.fullmatch("host1: torchrun ended with status 1 while .*; .*, on these hosts or others", ended)
    assert last == "  RuntimeError: out of luck"
    hosts.assert_nothing_left()


@pytest.fixture
def lose(hosts):
    """Kills what runs on a host but its sshd."""
    sessions = [set(hosts.pids(number)) for number in range(2)]

    def kill(number):
        for process in set(hosts.pids(number)) - sessions[number]:
            with suppress(ProcessLookupError):  # it ended with the one before
                os.kill(int(process), signal.SIGKILL)

    return kill


def test_a_host_that_is_lost_is_named_and_all_end(hosts, ask, lose):
    with pytest.raises(
        RunFailed, match=r"^host1: the connection to it is lost \(.*\) while it trained; the same"
    ) as lost:
        ask(1, lambda _: lose(1))
    assert re.search(
        "goes on from step [0-9]+, the last checkpoint copied here, on these hosts or", str(lost.value)
    )
    hosts.assert_nothing_left()


def test_a_network_that_is_gone_for_five_seconds_loses_no_host(hosts, ask):
    ended = []

    def interrupt():
        hosts.inside(1, "ip", "link", "set", "eth0", "down")
        time.sleep(5)
        hosts.inside(1, "ip", "link", "set", "eth0", "up")
        time.sleep(5)  # ssh and the host have asked for one another by now
        ended.append(len(hosts.left()) == 0)
        os.kill(os.getpid(), signal.SIGINT)

    watch = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(1, lambda _: watch.start(), out=hosts.out / "gone")
    watch.join()
    assert ended == [False]


def test_after_the_first_host_is_lost_for_good_others_go_on_from_what_came_home(
    hosts, ask, lose, interrupted, monkeypatch
):
    monkeypatch.setattr(run_copies, "_EVERY_S", 0.05)
    out = hosts.out / "lost"
    home = RunDirectory(out / "runs" / "cell")

    def lose_once_it_is_home(_):
        until = time.monotonic() + 60
        while not (out / "runs/cell/checkpoint/latest.json").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        lose(0)
        hosts.inside(0, "ip", "link", "set", "eth0", "down")
        home.run_json.write_text(json.dumps(header("ist", cell="cell", status="running", result=None)))

    try:
        with pytest.raises(RunFailed, match="^host0: the connection to it is lost "):
            ask(1, lose_once_it_is_home, out=out)
        assert home.header().status == "failed"  # which the host itself can tell nobody
        assert home.header().error.startswith("host0: the connection to it is lost ")
        assert [type(event) for event in home.events()] == [Fault, Stop]
        assert (step_of(out), sorted(path.name for path in out.iterdir())) == (10, ["runs"])
        assert (out / "runs/cell/checkpoint/10/rank-0.json").exists()
        said = interrupted(names=["host1"], out=out)
        assert said == ["copied the earlier part of cell to host1", "at step 20"]
    finally:
        hosts.inside(0, "ip", "link", "set", "eth0", "up")
    assert step_of(out) == 20
    hosts.assert_nothing_left()


def test_hosts_that_do_not_answer_are_all_named(ask):
    with pytest.raises(Unfit) as unfit:
        ask(1, names=["host0", "10.79.0.254", "nobody-here@host1"])
    first, second = unfit.value.problems
    assert first.startswith("10.79.0.254: ssh does not reach it (ssh: connect to host 10.79.0.254 port 22: ")
    assert second.startswith(
        "nobody-here@host1: it accepts none of your keys (nobody-here@10.79.0.2: Permission denied"
    )


def test_one_machine_by_two_names_is_refused(hosts, ask):
    with pytest.raises(Unfit, match="^10.79.0.1: it is the same machine as host0"):
        ask(1, names=["host0", "10.79.0.1"])
    with pytest.raises(Unfit, match=f"^host1:{OTHER_PORT}: it is the same machine as host1"):
        ask(1, names=["host1", f"host1:{OTHER_PORT}"])


def test_a_host_that_cannot_reach_the_first_is_named_with_the_port(hosts, ask):
    hosts.inside(1, "ip", "route", "add", "prohibit", "10.79.0.1/32")
    try:
        with pytest.raises(Unfit, match=r"^host1: does not reach host0 at 10.79.0.1, port \d+ "):
            ask(1)
    finally:
        hosts.inside(1, "ip", "route", "del", "prohibit", "10.79.0.1/32")
    assert hosts.inside(0, "ss", "-ltnH").count("\n") == 2  # its sshd, at two ports


def test_paths_that_are_not_there_are_named(ask, tmp_path):
    with pytest.raises(Unfit) as unfit:
        ask(1, data=Path("no/such/data"))
    assert [problem.partition(" (")[0] for problem in unfit.value.problems] == [
        "host0: no no/such/data there",
        "host1: no no/such/data there",
    ]


@pytest.fixture
def python_with(tmp_path, monkeypatch):
    """A Python whose packages are first looked for among the given files."""
    monkeypatch.chdir(tmp_path)  # where hosts start too, and not among istbench's own sources

    def made(**modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
        script.chmod(0o755)
        return str(script)

    return made


def problems_of(ask, **changed):
    with pytest.raises(Unfit) as unfit:
        ask(1, **changed)
    return unfit.value.problems


def test_a_python_that_is_not_there_is_said_of_each_host(ask):
    assert problems_of(ask, python="/no/python") == [
        f"{name}: no Python there by the name of /no/python; name one by --hosts-python"
        for name in ("host0", "host1")
    ]


def test_another_version_and_a_clock_that_is_off_are_said_of_each_host(ask, python_with):
    late = "import time\n_now = time.time\ntime.time = lambda: _now() + 3600\n"
    python = python_with(istbench="__version__ = '0.0.1'\n", sitecustomize=late)
    version, clock, *others = problems_of(ask, python=python)
    assert version.startswith("host0: it has istbench 0.0.1 (")
    assert clock == "host0: its clock is 60 min ahead of this host's; set it, by NTP for instance"
    assert [line.partition(":")[0] for line in others] == ["host1", "host1"]


def test_no_istbench_is_said_of_each_host(ask, python_with):
    first, _ = problems_of(ask, python=python_with(istbench="raise ImportError\n"))
    assert first.startswith(f"host0: no istbench for {sys.executable}; --install installs istbench ")


def test_a_full_disk_is_said_of_the_first_host(hosts, ask):
    hosts.resize(0, "1m")
    (line,) = problems_of(ask)
    hosts.resize(0, "1g")
    assert line == f"host0: only 1 MiB are free for {hosts.out} there; free some, or choose another --out"
