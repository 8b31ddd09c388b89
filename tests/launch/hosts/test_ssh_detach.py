"""Cells that the first host runs on its own: left, followed, left again, ended; on hosts with their own sshds."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from istbench.base.cache import cache_directory
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.hosts import detached as detaching
from istbench.launch.hosts.connection import pythons
from istbench.launch.hosts.detached import detach, follow, stop
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.run import HostsRun

pytestmark = pytest.mark.processes


@pytest.fixture
def both(hosts, monkeypatch):
    monkeypatch.setenv("PATH", hosts.path)
    yield
    hosts.assert_nothing_left()
    for name in ("detached", "restarted"):
        shutil.rmtree(hosts.out / name, ignore_errors=True)


@pytest.fixture
def config(hosts):
    return hosts.folder / "config"


def cell(hosts, config, seed=1, out="detached"):
    request = RunRequest(workload="toy", method="ist", seed=seed, nodes=2)
    on = [Host(name) for name in hosts.names]
    return HostsRun(request=request, out=hosts.out / out, hosts=on, pythons=pythons(None), config=config)


def leave(run):
    said = []
    detach([run], said.append)
    return said


def jobs():
    return list((cache_directory() / "detached").glob("*"))


def test_a_cell_goes_on_without_this_machine_and_is_followed_and_ended(hosts, both, config):
    run = cell(hosts, config)
    copied, said = leave(run)
    assert copied == "copied 1 ssh key(s) to host0, which deletes them when the cells end"
    assert said.startswith("host0 runs the cell on its own now; the same command without --detach follows")
    (job,) = jobs()
    assert (job.stat().st_mode & 0o777, {path.stat().st_mode & 0o777 for path in job.glob("key-*")}) == (
        0o700,
        {0o600},
    )
    with pytest.raises(
        UserError, match="^host0 runs this command detached already; the same command without --detach"
    ):
        leave(run)

    said = []

    def interrupt(line):
        said.append(line)
        if line == "at step 10":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        follow(run, interrupt)
    assert said[1:] == ["at step 10", "host0 goes on; the same command follows it again, and --stop ends it"]
    assert hosts.left()

    stop([run])
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        follow(run, said.append)
    assert said[1:] == ["at step 10"]
    assert (run.out / "runs/cell/checkpoint/10/rank-0.json").exists()
    assert jobs() == []
    assert follow(run, said.append) is None
    with pytest.raises(UserError, match="^nothing of this command runs detached on host0; leave out --stop$"):
        stop([run])


def test_a_first_host_that_does_not_reach_another_by_ssh_is_refused(hosts, both):
    with pytest.raises(Unfit) as unfit:
        leave(cell(hosts, None))
    (line,) = unfit.value.problems
    assert line.startswith("host1: it accepts none of your keys (root@10.79.0.2: Permission denied")
    assert line.endswith(" (seen from host0)")
    assert jobs() == []


def test_a_failure_is_reported_once_it_is_asked_for(hosts, both, config):
    run = cell(hosts, config, seed=2)

    def leave_and_follow():
        leave(run)  # it may fail before this returns
        follow(run, print)

    with pytest.raises(UserError, match="^no such thing; use another$"):
        leave_and_follow()
    assert jobs() == []


def test_a_first_host_that_was_restarted_is_named(hosts, both, config):
    run = cell(hosts, config, out="restarted")
    leave(run)
    (job,) = jobs()
    until = time.monotonic() + 30.0
    while not any("at step" in log.read_text() for log in job.glob("*/said")) and time.monotonic() < until:
        time.sleep(0.05)  # it trains, so it has a run directory
    os.kill(int((job / "pid").read_text()), signal.SIGKILL)
    hosts.assert_nothing_left()  # the others notice
    with pytest.raises(RunFailed, match="^the detached istbench ended without a message, for example because"):
        follow(run, print)
    assert (run.out / "runs/cell/run.json").exists()
    assert jobs() == []


@pytest.mark.skipif(shutil.which("ssh") is None or shutil.which("ssh-keygen") is None, reason="no OpenSSH here")
def test_the_files_of_ssh_have_addresses_host_keys_and_named_private_keys_alone(tmp_path):
    key, known, config = tmp_path / "key", tmp_path / "known", tmp_path / "config"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    known.write_text(f"[54.1.2.3]:2222 {public}\n")
    config.write_text(
        f"Host b\n  HostName 54.1.2.3\n  User ubuntu\n  Port 2222\n  IdentityFile {key}\n  ProxyCommand nc %h %p\n"
        f"Host *\n  UserKnownHostsFile {known}\n  StrictHostKeyChecking accept-new\n"
    )
    files = detaching._ssh_files([Host("b"), Host("me@c")], {"b": "10.0.0.2", "me@c": "10.0.0.3"}, config)
    first, second = files["ssh_config"].split("Host c\n")
    lines = [line.strip() for line in first.splitlines()]
    assert lines[:2] == ["Host b", "HostName 10.0.0.2"]
    assert {"User ubuntu", "Port 2222"} <= set(lines)
    assert "Proxy" not in first
    assert "StrictHostKeyChecking" not in first  # its key is known
    assert {"User me", "Port 22", "StrictHostKeyChecking accept-new"} <= {
        line.strip() for line in second.splitlines()
    }
    (name,) = [name for name in files if name.startswith("key-")]
    assert files[name] == key.read_text()
    assert f"IdentityFile {{folder}}/{name}" in lines
    assert files["known_hosts"].split() == ["istbench-0", *public.split()]
