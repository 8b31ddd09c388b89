"""Runs in which something stops without ending: it is noticed, named and ended. Real processes, small time-outs."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from istbench.launch.processes import local, stuck

pytestmark = pytest.mark.processes

# Workers ON stand still at WHERE: in a loss of step 8, or in the second batch of an evaluation.
STILL = """
import os, pathlib, time
from istbench.workloads.toy import Toy

def wait(where):
    if where == WHERE and os.environ["RANK"] in ON:
        pathlib.Path(TOLD, os.environ["RANK"]).write_text(str(os.getpid()))
        time.sleep(600)

class Still(Toy):
    name = "still"
    passes = 0

    def loss(self, model, batch):
        self.passes += model.training  # not those before training, which rank 0 has more of
        if self.passes == 10:
            wait("loss")
        return super().loss(model, batch)

    def evaluate(self, model, batches):
        time.sleep(SLOW)
        wait("evaluation")
        return super().evaluate(model, batches)
"""


class Still:
    """The command of a run of two nodes, of which some stand still, and the processes of these by rank."""

    def __init__(self, folder, where, on="", *, slow=0, timeout=4, method="local_sgd", steps=40, every=4):
        self._told, self._on = folder / "told", on
        self._told.mkdir()
        plugin = folder / "still.py"
        constants = {"WHERE": where, "ON": on, "TOLD": str(self._told), "SLOW": slow}
        plugin.write_text("\n".join(f"{name} = {value!r}" for name, value in constants.items()) + STILL)
        self.command = [
            "run", "--plugin", plugin, "--workload", "still", "--method", method, "--nodes", 2, "--steps", steps,
            "--eval-every", every, "--timeout", timeout, "--out", folder / "out",
        ]  # fmt: skip

    def processes(self):
        """Once all that stand still do so."""
        until = time.monotonic() + 300
        while len(found := list(self._told.iterdir())) < len(self._on) or not all(map(Path.read_text, found)):
            assert time.monotonic() < until
            time.sleep(0.05)
        return {int(path.name): int(path.read_text()) for path in found}


@pytest.fixture
def run_still(tmp_path, istbench, monkeypatch):
    """Runs `Still` from this process; `then` gets the processes that stand still."""
    monkeypatch.setattr(local, "GRACE_S", 0.5)

    def run(where, on="", then=lambda _: None, **options):
        still = Still(tmp_path, where, on, **options)
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(lambda: then(still.processes()))
            status, _, said = istbench(*still.command)
            done.result()
        return status, said.splitlines()[-1]

    return run


def header_of(tmp_path):
    (path,) = tmp_path.glob("out/runs/*/run.json")
    return json.loads(path.read_text())


def stop(processes):
    for process in processes.values():
        os.kill(process, signal.SIGSTOP)


def test_a_rank_0_that_is_stopped_in_an_evaluation_is_named(run_still, tmp_path):
    status, said = run_still("evaluation", on="0", then=stop)
    assert (status, said) == (
        1,
        "istbench: worker 0 was evaluating after step 0 when a signal (SIGSTOP) stopped it, and did not continue "
        "within --timeout 4 s; the same command starts from step 0: no checkpoint was written yet",
    )
    assert header_of(tmp_path)["status"] == "failed"


def test_an_evaluation_may_take_longer_than_the_time_out(run_still, tmp_path):
    status, said = run_still("nowhere", timeout=2, steps=4, every=4, slow=3)
    assert status == 0, said


def test_a_worker_that_is_stopped_in_training_is_named_and_not_the_one_that_waits_for_it(run_still):
    status, said = run_still("loss", on="1", then=stop, method="ddp")
    assert status == 1
    assert said.startswith("istbench: worker 1 was computing training step ")
    assert "when a signal (SIGSTOP) stopped it, and did not continue within --timeout 4 s" in said


def test_a_loss_that_never_returns_on_one_node_is_named_by_those_who_wait(run_still):
    status, said = run_still("loss", on="1", method="ddp")
    assert status == 1
    assert "gave up after 4 s: rank 1 did not join, but is alive (computing training step " in said


def test_a_loss_that_never_returns_on_all_nodes_is_noticed(run_still, monkeypatch):
    monkeypatch.setattr(stuck, "_LATER_S", 1.0)
    status, said = run_still("loss", on="01")
    assert status == 1
    assert said.startswith("istbench: worker 0 was computing training step ")
    assert "for more than --timeout 4 s without finishing; if this work only takes long" in said


@pytest.mark.usefixtures("warm_commands")
def test_a_killed_fork_server_is_named(tmp_path):
    still = Still(tmp_path, "loss", on="01")
    command = [sys.executable, "-m", "istbench", *map(str, still.command)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            stat = Path(f"/proc/{still.processes()[0]}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith(
        "istbench: the fork server, the parent process of all workers, was killed by SIGKILL while computing"
    )


@pytest.mark.usefixtures("warm_commands")
def test_a_plugin_that_takes_long_to_import_is_named_and_ctrl_c_ends_it(tmp_path):
    plugin = tmp_path / "slow.py"
    plugin.write_text("import time\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "istbench", "run", "--plugin", plugin, "--workload", "toy", "--method", "ddp"]
    process = subprocess.Popen(
        list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=tmp_path
    )
    try:
        said = process.stderr.readline()
        assert said == f"istbench: importing plug-in {plugin} takes more than 5 s; Ctrl-C ends it\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "interrupted" in said
        assert "Traceback" not in said
    finally:
        process.kill()
        process.communicate()
