"""Runs in which something stops without ending: it is noticed, named and ended. Real processes, small time-outs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Stands still where the environment says so: in a loss of step 8, or in the second batch of an evaluation.
STILL = """
import os, pathlib, time
from istbench.workloads.toy import Toy

def wait(where):
    if os.environ.get("STILL") == where and os.environ["RANK"] in os.environ["STILL_ON"]:
        pathlib.Path(os.environ["TOLD"], os.environ["RANK"]).write_text(str(os.getpid()))
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
        time.sleep(float(os.environ.get("SLOW", 0)))
        wait("evaluation")
        return super().evaluate(model, batches)
"""


@pytest.fixture
def run_still(tmp_path):
    """Starts a run of two nodes that stands still at `where`, on ranks `on`; `then` gets the processes by rank."""
    plugin, told = tmp_path / "still.py", tmp_path / "told"
    plugin.write_text(STILL)
    told.mkdir()
    started = []

    def run(where, on="", then=None, timeout=4, method="local_sgd", every=4, **environment):
        command = [
            sys.executable, "-m", "istbench", "run", "--plugin", plugin, "--workload", "still", "--method", method,
            "--nodes", "2", "--steps", "40", "--eval-every", every, "--timeout", timeout, "--out", tmp_path / "out",
        ]  # fmt: skip
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "STILL": where, "STILL_ON": on, "TOLD": str(told), **environment},
        )
        started.append(process)
        until = time.monotonic() + 300
        while len(list(told.iterdir())) < len(on):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.05)
        if then is not None:
            time.sleep(0.2)  # the process id is written whole
            then({int(path.name): int(path.read_text()) for path in told.iterdir()})
        _, said = process.communicate(timeout=300)
        return process.returncode, said.splitlines()[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


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
        "istbench: worker 0 was evaluating after step 0 when a signal (SIGSTOP) stopped it, and did not go on "
        "within --timeout 4 s; the same command starts anew: no checkpoint was written yet",
    )
    assert header_of(tmp_path)["status"] == "failed"


def test_an_evaluation_may_take_longer_than_the_time_out(run_still, tmp_path):
    status, said = run_still("nowhere", timeout=3, every=40, SLOW="5")
    assert status == 0, said


def test_a_worker_that_is_stopped_in_training_is_named_and_not_the_one_that_waits_for_it(run_still):
    status, said = run_still("loss", on="1", then=stop, method="ddp")
    assert status == 1
    assert said.startswith("istbench: worker 1 was computing training step ")
    assert "when a signal (SIGSTOP) stopped it, and did not go on within --timeout 4 s" in said


def test_a_loss_that_never_returns_on_one_node_is_named_by_those_who_wait(run_still):
    status, said = run_still("loss", on="1", method="ddp")
    assert status == 1
    assert "gave up after 4 s: rank 1 did not come, but lives (computing training step " in said


def test_a_loss_that_never_returns_on_all_nodes_is_noticed(run_still):
    status, said = run_still("loss", on="01")
    assert status == 1
    assert said.startswith("istbench: worker 0 was computing training step ")
    assert "for more than --timeout 4 s without an end; if that is no mistake of the method or the workload" in said


def test_a_killed_fork_server_is_named(run_still):
    def kill_parent(processes):
        stat = Path(f"/proc/{processes[0]}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    status, said = run_still("loss", on="01", then=kill_parent)
    assert status == 1
    assert said.startswith(
        "istbench: the fork server, the parent process of all workers, was killed by SIGKILL while computing"
    )


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
