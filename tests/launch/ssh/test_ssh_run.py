"""Runs on hosts with their own networks and sshds, and what stands for torchrun: watched, and ended together."""

import json
import os
import signal
import time

import pytest

from istbench.errors import RunFailed, UserError
from istbench.launch.ssh.group import Unfit


def step_of(out):
    return json.loads((out / "runs/cell/checkpoint/latest.json").read_text())["step"]


def assert_nothing_left(hosts):
    until = time.monotonic() + 10
    while hosts.left():
        assert time.monotonic() < until, hosts.left()
        time.sleep(0.05)


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
    assert hosts.left() == []
    assert step_of(hosts.out) == step_of(hosts.results(0)) == 10
    assert not (hosts.results(1) / "runs").exists()
    assert sorted(path.name for path in hosts.out.iterdir()) == ["runs"]

    assert interrupted() == ["at step 20"]
    # Another host first: what is known of the run is on the old one, and here.
    assert interrupted(names=hosts.names[::-1]) == ["brought what is known of cell to host1", "at step 30"]
    assert step_of(hosts.out) == step_of(hosts.results(1)) == 30
    assert interrupted() == ["brought what is known of cell to host0", "at step 40"]


def test_a_directory_that_the_first_host_shares_is_written_there_alone(hosts, interrupted, tmp_path):
    assert interrupted(out=tmp_path / "shared") == ["at step 10"]
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["runs"]
    assert step_of(tmp_path / "shared") == 10


def test_what_rank_0_says_last_is_what_the_run_says(hosts, ask):
    with pytest.raises(UserError, match="^no such thing; use another$"):
        ask(2)
    assert_nothing_left(hosts)


def test_a_torchrun_that_dies_is_named_by_its_host_with_its_last_lines_and_all_end(hosts, ask):
    with pytest.raises(RunFailed) as failure:
        ask(3)
    assert str(failure.value).splitlines() == [
        "host1: torchrun ended with status 1; the same command goes on from the last checkpoint",
        "  RuntimeError: out of luck",
    ]
    assert_nothing_left(hosts)


def test_a_host_that_is_lost_is_named_and_all_end(hosts, ask):
    sessions = set(hosts.pids(1))

    def lose(_):
        for process in set(hosts.pids(1)) - sessions:
            os.kill(int(process), signal.SIGKILL)

    with pytest.raises(RunFailed, match=r"^host1: the connection to it is lost \(.*\); the same command goes on"):
        ask(1, lose)
    assert_nothing_left(hosts)


def test_hosts_that_do_not_answer_are_all_named(ask):
    with pytest.raises(Unfit) as unfit:
        ask(1, names=["host0", "10.79.0.254", "nobody-here@host1"])
    first, second = unfit.value.problems
    assert first.startswith("10.79.0.254: ssh does not get there (ssh: connect to host 10.79.0.254 port 22: ")
    assert second.startswith("nobody-here@host1: ssh does not get there (nobody-here@10.79.0.2: Permission denied")


def test_one_machine_by_two_names_is_refused(hosts, ask):
    with pytest.raises(Unfit, match="^10.79.0.1: it is the same machine as host0"):
        ask(1, names=["host0", "10.79.0.1"])


def test_a_host_that_cannot_reach_the_first_is_named_with_the_port(hosts, ask):
    hosts.inside(1, "ip", "route", "add", "prohibit", "10.79.0.1/32")
    try:
        with pytest.raises(Unfit, match=r"^host1: does not reach host0 at 10.79.0.1, port \d+ "):
            ask(1)
    finally:
        hosts.inside(1, "ip", "route", "del", "prohibit", "10.79.0.1/32")
    assert hosts.inside(0, "ss", "-ltnH").count("\n") == 1  # its sshd


def test_paths_that_are_not_there_are_named(ask, tmp_path):
    with pytest.raises(Unfit) as unfit:
        ask(1, paths=("no/such/data",))
    assert [problem.partition(" (")[0] for problem in unfit.value.problems] == [
        "host0: no no/such/data there",
        "host1: no no/such/data there",
    ]
