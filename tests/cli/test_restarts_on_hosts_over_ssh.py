"""`run --hosts --restarts --spare`: hosts with networks of their own, of which one loses its link."""

import json
import subprocess

import pytest
import ssh_hosts

from istbench.results.events import Ready, Resume
from istbench.results.store import RunDirectory

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("warm_commands")]

# The host of its rank 1 loses its link once, at its hundredth step.
DYING = """
import os, subprocess
from pathlib import Path
from istbench.methods.local_sgd import LocalSGD
class Dying(LocalSGD):
    name = "dying"
    taken = 0
    def step(self, batch):
        self.taken += 1
        died = Path(__file__).parent / "died"
        if self.taken == 100 and os.environ["RANK"] == "1" and not died.exists():
            died.touch()
            subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        return super().step(batch)
"""
RUN = ["run", "--method", "dying", "--workload", "toy", "--threads", "1", "--checkpoint-every", "0", "--json"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    reason = ssh_hosts.why_not()
    if reason:
        pytest.skip(reason)
    with ssh_hosts.hosts(3, tmp_path_factory.mktemp("ssh") / "hosts") as found:
        yield found


def test_a_spare_host_takes_the_place_of_one_whose_link_is_gone(hosts, tmp_path, istbench):
    """The weights are those of a run of this machine that loses none."""
    plugin, out = tmp_path / "dying.py", hosts.out / "spared"
    plugin.write_text(DYING)
    asked = [*RUN, "--plugin", plugin, "--hosts", "host0,host1", "--out", out, "--restarts", 1, "--spare", "host2"]
    done = subprocess.run(hosts.command(*asked), env=hosts.environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "host1 cannot be reached: host2 takes its place" in done.stderr
    assert "; the run starts again from its last checkpoint" in done.stderr
    found = json.loads(done.stdout)
    (restart,) = found["restarts"]
    assert restart["noticing_s"] > 1
    (path,) = (out / "runs").iterdir()
    run = RunDirectory(path)
    assert run.header().host.name == "host0, host2"
    (resume,) = (event for event in run.events() if isinstance(event, Resume))
    assert resume.step == restart["step"] > 0
    assert len([event for event in run.events() if isinstance(event, Ready)]) == 1
    hosts.assert_nothing_left()
    whole = istbench(*RUN, "--plugin", plugin, "--nodes", 2, "--out", tmp_path / "whole")[1]
    assert found["weights_sha256"] == json.loads(whole)["weights_sha256"]
