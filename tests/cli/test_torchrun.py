"""`istbench run` under torchrun: real processes on one host, and on two that share nothing but the install."""

import json
import signal
import socket
import time

import pytest
from said import messages
from small_task import SLOW, TASK
from torchruns import start, start_on_two

from istbench.node.checkpoint_steps import newest_whole
from istbench.results.events import Fault, Resume
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

# Ends its process on node 1 once, at step 12; the first pass of all warms up.
FALLS = """
import os, pathlib, signal
from istbench.workloads.toy import Toy

class Falls(Toy):
    name = "falls"
    passes = -1

    def loss(self, model, batch):
        Falls.passes += 1
        fell = pathlib.Path("FELL")
        if os.environ["RANK"] == "1" and self.passes == 12 and not fell.exists():
            fell.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
"""


def run_on_two(words, tmp_path):
    """Run `words` on two hosts; returns the output of each, and its exit status."""
    both = start_on_two(words, tmp_path)
    return [(*process.communicate(timeout=180), process.returncode) for process in both]


@pytest.fixture
def on_one_host(tmp_path, istbench):
    """Runs words by `istbench run --nodes 2`; returns its JSON."""

    def run(words):
        status, out, said = istbench(*words, "--nodes", 2, "--out", tmp_path / "one")
        assert status == 0, said
        return json.loads(out)

    return run


def test_a_worker_killed_on_one_of_two_hosts_is_named_and_one_host_goes_on_where_the_two_were(
    tmp_path, on_one_host
):
    plugin = tmp_path / "falls.py"
    plugin.write_text(FALLS.replace("FELL", str(tmp_path / "fell")))
    words = ["run", "--plugin", plugin, "--workload", "falls", "--method", "p3", "--steps", 20, "--eval-every", 5]
    words += ["--checkpoint-every", 0, "--seed", 1, "--threads", 1, "--json"]
    (_, error, status), (_, quiet, other) = run_on_two(words, tmp_path)
    assert (status, other) == (1, 1)
    message = f"{socket.gethostname()}: worker 1 was killed by SIGKILL"
    assert [line.startswith(f"istbench: {message}") for line in messages(error)] == [True], error
    assert messages(quiet) == []
    (path,) = (tmp_path / "host0" / "runs").iterdir()
    run = RunDirectory(path)
    assert run.header().status == "failed"
    assert [event.message.startswith(message) for event in run.events() if isinstance(event, Fault)] == [True]
    # All of the checkpoint is on rank 0's host; the other keeps nothing.
    assert {file.name for file in (path / "checkpoint" / "10").iterdir()} >= {"rank-0.json", "rank-1.json"}
    assert not (tmp_path / "host1").exists()

    process = start([*words, "--out", tmp_path / "host0"], "--standalone", "--nproc-per-node", 2)
    out, error = process.communicate(timeout=180)
    assert process.returncode == 0, error
    assert error.count("2 nodes on 1 host, talking by gloo over lo (127.0.0.1)") == 1
    assert [event.step for event in run.events() if isinstance(event, Resume)] == [10]
    found, local = json.loads(out), on_one_host(words)  # only rank 0 prints
    assert found["nodes"] == 2
    assert (found["cell"], found["weights_sha256"]) == (local["cell"], local["weights_sha256"])
    assert (path / "trace.npz").exists()


def test_what_every_rank_does_wrong_is_said_once_with_the_exit_status_of_all(tmp_path):
    words = ["run", "--method", "ist", "--workload", "toy", "--set", "nonsense=1", "--out", tmp_path]
    # torchrun looks once, after both have exited: if only one has, it ends the other and reports one exit status.
    process = start(words, "--standalone", "--nproc-per-node", 2, "--monitor-interval", 9)
    _, error = process.communicate(timeout=180)
    (line,) = messages(error)
    assert "nonsense" in line
    assert error.count("exitcode  : 2") == 2


def test_ctrl_c_at_either_host_stops_both_after_the_same_step_with_a_checkpoint(tmp_path, on_one_host, istbench):
    task, held = tmp_path / "slow.py", tmp_path / "held"
    task.write_text(TASK + SLOW.replace("HELD", str(held)))
    words = ["run", "--workload", task, "--method", "ddp", "--steps", 400, "--json"]
    words += ["--eval-every", 1000, "--threads", 1]
    steps = [0]
    for host in (0, 1):
        held.write_text("")
        both = start_on_two(words, tmp_path)
        deadline = time.monotonic() + 120
        while not held.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        both[host].send_signal(signal.SIGINT)
        said = [process.communicate(timeout=120) for process in both]
        assert [process.returncode != 0 for process in both] == [True, True], said
        (path,) = (tmp_path / "host0" / "runs").iterdir()
        run = RunDirectory(path)
        assert run.header().status == "interrupted", said
        steps.append(newest_whole(path / "checkpoint").totals.step)
        assert steps[-2] < steps[-1] < 400
    held.unlink()
    whole = on_one_host(words)
    # Without torchrun, the same cell goes on.
    status, out, said = istbench(*words, "--nodes", 2, "--out", tmp_path / "host0")
    assert status == 0, said
    assert json.loads(out)["weights_sha256"] == whole["weights_sha256"]
    assert [event.step for event in run.events() if isinstance(event, Resume)] == steps[1:]
