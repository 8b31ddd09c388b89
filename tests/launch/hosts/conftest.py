"""Hosts for the tests of ssh."""

import shutil
from pathlib import Path

import published_steps
import pytest
import ssh_hosts

from istbench.base.options.run import RunRequest
from istbench.launch.hosts import run as ssh_run
from istbench.launch.hosts.connection import pythons
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.run import HostsRun, run_on_hosts

FAKE_TORCHRUN = Path(ssh_hosts.__file__).parent / "fake_torchrun.py"


@pytest.fixture(scope="session")
def hosts(tmp_path_factory):
    """Two hosts, whose torchrun is `fake_torchrun`."""
    reason = ssh_hosts.why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("ssh")
    fake = folder / "install" / "torch" / "distributed"
    fake.mkdir(parents=True)
    for package in (fake, fake.parent):
        (package / "__init__.py").touch()
    shutil.copy(FAKE_TORCHRUN, fake / "run.py")
    shutil.copy(published_steps.__file__, folder / "install")
    with ssh_hosts.hosts(2, folder / "hosts", str(folder / "install")) as found:
        yield found


@pytest.fixture
def ask(hosts, monkeypatch):
    """Asks for a run on both hosts, with a seed; what is said goes to `say`."""
    monkeypatch.setenv("PATH", hosts.path)
    monkeypatch.setattr(ssh_run, "_FAREWELL_S", 0.3)

    def run(seed, say=lambda text: None, names=hosts.names, out=hosts.out, python=None, config=None, **changed):
        request = RunRequest(workload="toy", method="ist", seed=seed, **changed)
        on = [Host(name) for name in names]
        return run_on_hosts(
            HostsRun(request=request, out=out, hosts=on, pythons=pythons(python), config=config), say
        )

    return run
