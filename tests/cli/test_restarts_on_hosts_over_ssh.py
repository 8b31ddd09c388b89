"""`run --hosts --restarts --spare`: hosts with networks of their own, of which one loses a worker or its link."""

import json
import subprocess

import pytest
import ssh_hosts

from istbench.results.events import Ready, Resume
from istbench.results.store import RunDirectory

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("warm_commands")]

# Its node of rank `victim` does `way` once, at its hundredth step.
DYING = """
import json, os, signal, subprocess
from pathlib import Path
from istbench.methods.local_sgd import LocalSGD
class Dying(LocalSGD):
    name = "dying"
    taken = 0
    def step(self, batch):
        self.taken += 1
        here = Path(__file__).parent
        how = json.loads((here / "how.json").read_text())
        if self.taken == 100 and os.environ["RANK"] == how["victim"] and not (here / "died").exists():
            (here / "died").touch()
            if how["way"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how["way"] == "unplug":
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


@pytest.fixture
def trained(hosts, tmp_path, istbench):
    """Trains on the first two hosts, which lose a node in this `way`; returns the result and what was said.

    The weights are those of a run of this machine that loses none.
    """
    (tmp_path / "dying.py").write_text(DYING)

    def train(out, way, victim, *words):
        (tmp_path / "how.json").write_text(json.dumps({"victim": victim, "way": way}))
        run = [*RUN, "--plugin", tmp_path / "dying.py"]
        asked = [*run, "--hosts", "host0,host1", "--out", out, "--restarts", 1, *words]
        done = subprocess.run(
            hosts.command(*asked), env=hosts.environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        found, whole = json.loads(done.stdout), istbench(*run, "--nodes", 2, "--out", tmp_path / "whole")[1]
        assert found["weights_sha256"] == json.loads(whole)["weights_sha256"]
        return found, done.stderr

    return train


def test_a_run_on_hosts_goes_on_after_a_killed_worker(hosts, trained):
    found, said = trained(hosts.out, "kill", "0")
    (restart,) = found["restarts"]
    assert restart["cause"].endswith("worker 0 was killed by SIGKILL while computing training step 99")
    assert "; the run starts again from its last checkpoint" in said
    events = RunDirectory(hosts.out / "runs" / found["cell"]).events()
    (resume,) = (event for event in events if isinstance(event, Resume))
    assert resume.step == restart["step"] > 0
    assert len([event for event in events if isinstance(event, Ready)]) == 1


def test_a_spare_host_takes_the_place_of_one_whose_link_is_gone(hosts, trained):
    found, said = trained(hosts.out / "spared", "unplug", "1", "--spare", "host2")
    assert "host1 cannot be reached: host2 takes its place" in said
    (restart,) = found["restarts"]
    assert restart["noticing_s"] > 1
    (run,) = (hosts.out / "spared" / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["host"]["name"] == "host0, host2"
    hosts.assert_nothing_left()
