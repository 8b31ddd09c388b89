"""Hosts that ssh does not know yet: what it says, and the line that the user runs, which helps."""

import os
import re
import shlex
import subprocess

import pytest
from ssh_hosts import OTHER_PORT

from istbench.launch.hosts.connection import connected, pythons, ssh_command, why_not_reached
from istbench.launch.hosts.names import Host

NEW_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHJr0EMQLlcmFFcxYsHv8WHOjbjnFoO6aVsu2gLGnDKY"


def test_the_port_and_the_configuration_are_given_to_ssh(tmp_path):
    words = ssh_command(Host("me@[::1]:2222"), ["python3"], 1, tmp_path / "config")
    assert words[:5] == ["ssh", "-F", str(tmp_path / "config"), "-p", "2222"]
    assert words[words.index("--") + 1] == "me@::1"


def test_a_host_that_wants_a_strict_check_is_asked_for_by_a_line_that_asks():
    said = [
        "No ED25519 host key is known for [a]:2222 and you have requested strict checking.",
        "Host key verification failed.",
    ]
    why = why_not_reached(Host("a:2222"), said, 255)
    assert why.startswith(
        "its host key is not known here yet; run `ssh -o StrictHostKeyChecking=ask -p 2222 a true`"
    )


def test_what_ssh_says_of_anything_else_is_passed_on():
    why = why_not_reached(Host("me@a"), ["", "ssh: connect to host a port 22: No route to host"], 255)
    assert why == (
        "ssh does not reach it (ssh: connect to host a port 22: No route to host); `ssh me@a true` must work "
        "without a question"
    )
    assert "(it ended with status 255)" in why_not_reached(Host("a"), [], 255)
    unknown = "ssh: Could not resolve hostname hosts.txt: Name or service not known"
    assert "and no file of hosts has this name;" in why_not_reached(Host("hosts.txt"), [unknown], 255)


@pytest.fixture
def config(hosts, tmp_path):
    """A configuration file of the user's, who knows no host yet: `with_key`, or with a key that no host accepts."""

    def made(with_key=True):
        key = hosts.folder / "user_key" if with_key else tmp_path / "other_key"
        if not with_key:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        path = tmp_path / "ssh config"
        path.write_text(f"IdentityFile {key}\nIdentitiesOnly yes\nUserKnownHostsFile {tmp_path}/known\n")
        return path

    return made


@pytest.fixture
def why(hosts, monkeypatch):
    """Why a host is not reached with a configuration; None where it is."""
    monkeypatch.setenv("PATH", hosts.path)

    def found(name, config):
        with connected([Host(name)], pythons(None), config) as ((connection,), _):
            try:
                connection.greet()
            except Exception as error:
                return str(error)
        return None

    return found


def ran(line):
    """Run the line that a message names."""
    return subprocess.run(shlex.split(line), env=os.environ, capture_output=True, text=True, timeout=60)


@pytest.mark.processes
def test_the_line_that_is_named_for_an_unknown_key_asks_and_then_the_host_is_reached(
    config, why, tmp_path, monkeypatch
):
    name, path = f"root@10.79.0.1:{OTHER_PORT}", config()
    said = why(name, path)
    line = f"ssh -F '{path}' -p {OTHER_PORT} root@10.79.0.1 true"
    assert said == f"its host key is not known here yet; run `{line}` once, compare the key, and accept it"
    yes = tmp_path / "yes"
    yes.write_text("#!/bin/sh\necho yes\n")
    yes.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(yes))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    assert ran(line).returncode == 0
    assert why(name, path) is None


@pytest.mark.processes
def test_a_key_that_changed_is_said_to_have_and_the_named_line_removes_it(config, why, tmp_path):
    name, path = f"10.79.0.1:{OTHER_PORT}", config()
    known = tmp_path / "known"
    known.write_text(f"[10.79.0.1]:{OTHER_PORT} {NEW_KEY}\n")
    said = why(name, path)
    assert said.startswith("its host key has changed: ")
    line = re.search("run `(ssh-keygen [^`]*)`", said)[1]
    assert line == f"ssh-keygen -R '[10.79.0.1]:{OTHER_PORT}' -f {known}"
    assert ran(line).returncode == 0
    assert why(name, path).startswith("its host key is not known here yet; ")


@pytest.mark.processes
def test_a_host_that_accepts_no_key_is_named_with_the_line_that_puts_one_there(config, why):
    path = config(with_key=False)
    with path.open("a") as file:
        file.write("StrictHostKeyChecking accept-new\nLogLevel ERROR\n")
    said = why(f"10.79.0.1:{OTHER_PORT}", path)
    assert re.match(r"it accepts none of your keys \(\S+: Permission denied \(publickey.*\)\); ", said)
    assert f"run `ssh-copy-id -F '{path}' -p {OTHER_PORT} 10.79.0.1` once" in said
