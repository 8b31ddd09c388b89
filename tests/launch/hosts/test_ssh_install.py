"""istbench installed on a host that has a Python and no istbench: a real wheel, by a real pip."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from istbench.base.cache import cache_directory
from istbench.launch.hosts import install as installing
from istbench.launch.hosts import remote_programs
from istbench.launch.hosts.connection import connected, pythons
from istbench.launch.hosts.group import HostFacts, Unfit
from istbench.launch.hosts.install import install
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.remote_programs import source_key

pytestmark = pytest.mark.processes

_BASE = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


@pytest.fixture
def bare(tmp_path, monkeypatch, wheel):
    """A Python of the hosts without istbench, whose pip installs no requirements: those have 3 GB."""

    def made(**more):
        python = tmp_path / "python"
        variables = {"PIP_NO_DEPS": "1", "PIP_NO_COMPILE": "1", **more}
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        python.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH {words} {_BASE} -I "$@"\n')
        python.chmod(0o755)
        return str(python)

    monkeypatch.setattr(installing, "own_versions", lambda: {"torch": "none"})
    monkeypatch.setattr(installing, "build_wheel", lambda scratch: wheel)
    yield made
    # Other tests must not find it: it has no requirements.
    shutil.rmtree(cache_directory() / "installed", ignore_errors=True)


def executable(host):
    with connected([host], pythons(None)) as ((connection,), _):
        connection.greet()
        question = {"folder": "/", "paths": [], "out": "/tmp", "marker": "none"}
        return HostFacts(**connection.do("facts", **question)).executable


def test_a_host_without_istbench_gets_it_once_and_commands_find_it(hosts, bare, monkeypatch):
    monkeypatch.setenv("PATH", hosts.path)
    host, said = Host("host0"), []
    assert executable(host) == sys.executable
    install([host], bare(), None, said.append)
    assert said[0] == "installing istbench on host0: some minutes the first time"
    assert said[1].startswith("installed istbench on 1 hosts in ")

    venv = cache_directory() / "installed" / source_key() / "venv"
    assert Path(executable(host)).parent == venv / "bin"
    where = [venv / "bin/python", "-I", "-c", "import importlib.util as u; print(u.find_spec('istbench').origin)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).is_relative_to(venv)

    said.clear()
    install([host], sys.executable, None, said.append)  # it has this code
    assert said == []


def test_a_pip_that_fails_is_named_with_its_last_line(hosts, bare, monkeypatch):
    monkeypatch.setenv("PATH", hosts.path)
    monkeypatch.setattr(installing, "source_key", lambda: "0" * 16)
    python = bare(PIP_REQUIRE_VIRTUALENV="1", PIP_TARGET="/proc/no")
    with pytest.raises(Unfit) as unfit:
        install([Host("host1")], python, None, print)
    (line,) = unfit.value.problems
    assert line.startswith("host1: `-m pip install` fails: ERROR: ")
    assert not (cache_directory() / "installed" / ("0" * 16) / "python").exists()


def test_an_environment_is_of_one_python_and_one_torch(hosts, bare, monkeypatch):
    before = source_key()
    monkeypatch.setattr(remote_programs, "version", lambda _name: "9.9.9")
    assert source_key() != before
    monkeypatch.setenv("PATH", hosts.path)
    monkeypatch.setattr(sys, "version_info", (3, 99))
    with pytest.raises(Unfit, match=r"host1: its Python is 3\.\d+, and 3.99 here; name another by --hosts-python"):
        install([Host("host1")], bare(), None, print)
