"""Commands of several cells under torchrun: real processes on one host, and on two with files of their own."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from said import messages
from small_task import SLOW, TASK
from torchruns import run_on_one, start, start_on_two

from istbench.results.events import Evaluation, Resume
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

SHORT = ["--steps", 20, "--eval-every", 10, "--threads", 1]
# With two nodes, the worker of node 1 ends in its first pass.
FALLS = """
import os, signal
from istbench.workloads.toy import Toy

class Falls(Toy):
    name = "falls"

    def loss(self, model, batch):
        if os.environ["RANK"] == "1" and not batch[0].is_meta:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
"""


def runs_of(out):
    """The run directories of a results directory, by name."""
    return {path.name: RunDirectory(path) for path in (out / "runs").iterdir()}


def learned(out):
    """By cell: what it learned and sent."""
    found = {}
    for name, run in runs_of(out).items():
        header, events = run.header(), [event for event in run.events() if isinstance(event, Evaluation)]
        assert header.status == "done"
        learned = [(event.step, event.samples, event.bytes_sent_per_node, event.metrics) for event in events]
        found[name] = (header.nodes, header.result.weights_sha256, learned)
    return found


def statuses(out):
    return {run.header().nodes: run.header().status for run in runs_of(out).values()}


def until(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.fixture
def slow(tmp_path):
    """A file, and the text of a task whose steps are slow while that file exists."""
    held = tmp_path / "held"
    held.write_text("")
    return held, TASK + SLOW.replace("HELD", str(held))


def test_compare_trains_what_it_trains_here_and_goes_on_after_a_cell_of_too_many_nodes(tmp_path, istbench):
    words = ["compare", "--workload", "toy", "--methods", "ist,ddp", "--seeds", 1, *SHORT]
    status, out, error = run_on_one([*words, "--nodes", "3,2,1", "--out", tmp_path / "together"])
    assert status == 1, error
    (refused,) = (
        line for line in messages(error) if "3 nodes need as many processes, and torchrun started 2" in line
    )
    assert "toy ist on 3 nodes, seed 0 and 1 more cell: " in refused
    assert out.count("the fastest first") == 1  # only rank 0 prints
    status, _, said = istbench(*words, "--nodes", "1,2", "--out", tmp_path / "here")
    assert status == 0, said
    assert learned(tmp_path / "together") == learned(tmp_path / "here")
    assert sorted(nodes for nodes, *_ in learned(tmp_path / "here").values()) == [1, 1, 2, 2]

    # A finished cell is not run again, and the other is; without an error all ranks end with 0.
    (path,) = (
        run.path for run in runs_of(tmp_path / "together").values() if run.path.name.startswith("toy-ist-n2")
    )
    shutil.rmtree(path)
    status, _, error = run_on_one([*words, "--nodes", "2,1", "--out", tmp_path / "together"])
    assert status == 0, error
    assert error.count(": done before") == 3
    assert learned(tmp_path / "together") == learned(tmp_path / "here")


def test_a_cell_whose_worker_is_killed_has_failed_and_the_next_one_begins(tmp_path):
    plugin = tmp_path / "falls.py"
    plugin.write_text(FALLS)
    words = ["compare", "--plugin", plugin, "--workload", "falls", "--methods", "ddp", "--nodes", "2,1", *SHORT]
    # torchrun looks once, after both have exited.
    process = start([*words, "--out", tmp_path], "--standalone", "--nproc-per-node", 2, "--monitor-interval", 9)
    _, error = process.communicate(timeout=240)
    assert error.count("exitcode  : 1") == 2, error
    (line,) = messages(error)
    assert re.search(r"falls-ddp-n2-s0-\w+: .*: worker 1 was killed by SIGKILL", line), error
    assert statuses(tmp_path) == {2: "failed", 1: "done"}


def test_sigterm_ends_all_with_the_running_cell_interrupted_and_the_same_command_resumes(tmp_path, slow):
    held, text = slow
    task = tmp_path / "slow.py"
    task.write_text(text)
    words = ["compare", "--workload", task, "--methods", "ddp", "--nodes", "1,2", "--steps", 60, "--threads", 1]
    words += ["--eval-every", 1000, "--out", tmp_path / "out"]
    process = start(words, "--standalone", "--nproc-per-node", 2)
    until(held.read_text, process)
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    assert statuses(tmp_path / "out") == {1: "interrupted"}, error
    assert len([line for line in messages(error) if "interrupted" in line]) == 1, error
    held.unlink()
    status, _, error = run_on_one(words)
    assert status == 0, error
    assert statuses(tmp_path / "out") == {1: "done", 2: "done"}
    steps = [
        event.step
        for run in runs_of(tmp_path / "out").values()
        for event in run.events()
        if isinstance(event, Resume)
    ]
    assert len(steps) == 1
    assert steps[0] > 0


@pytest.fixture
def folders(tmp_path, slow):
    """The working directories of two hosts, each with a task file of the same name."""
    found = [tmp_path / "a", tmp_path / "b"]
    for folder in found:
        folder.mkdir()
        (folder / "task.py").write_text(slow[1])
    return found


def test_two_hosts_compare_with_their_own_files_and_results_lie_with_the_first(tmp_path, folders, slow):
    slow[0].unlink()
    words = ["compare", "--workload", "task.py", "--methods", "ist", "--nodes", "1,2", *SHORT]
    both = start_on_two(words, tmp_path, folders)
    (_, error), (printed, quiet) = (process.communicate(timeout=240) for process in both)
    assert [process.returncode for process in both] == [0, 0], error + quiet
    # On a busy machine, a host notes that its own task file takes long.
    assert (printed, [line for line in messages(quiet) if "takes more than" not in line]) == ("", [])
    assert sorted(nodes for nodes, *_ in learned(tmp_path / "host0").values()) == [1, 2]
    assert not (tmp_path / "host1").exists()


@pytest.mark.parametrize("end", ["ctrl-c at the waiting host", "rank 0 is killed"])
def test_a_host_that_waits_while_another_trains_ends_with_it(tmp_path, folders, slow, end):
    words = ["compare", "--workload", "task.py", "--methods", "ddp", "--nodes", "1,2", "--steps", 400]
    both = start_on_two([*words, "--threads", 1, "--eval-every", 1000], tmp_path, folders)
    until(slow[0].read_text, both[0])
    if end == "rank 0 is killed":
        (rank_0,) = Path(f"/proc/{both[0].pid}/task/{both[0].pid}/children").read_text().split()
        os.kill(int(rank_0), signal.SIGKILL)
    else:
        both[1].send_signal(signal.SIGINT)
    said = [process.communicate(timeout=90) for process in both]
    assert [process.returncode != 0 for process in both] == [True, True], said
    if end == "rank 0 is killed":
        (line,) = messages(said[1][1])
        assert "torchrun's store at 127.0.0.1" in line
        assert "does not answer" in line
    else:
        assert statuses(tmp_path / "host0") == {1: "interrupted"}, said


def test_hosts_with_different_commands_are_told_so_before_anything_trains(tmp_path):
    both = []
    words = ["compare", "--workload", "toy", "--methods", "ddp", *SHORT]
    both = start_on_two(words, tmp_path, each=(["--nodes", "1,2"], ["--nodes", "2"]))
    (_, error), (_, quiet) = (process.communicate(timeout=240) for process in both)
    (line,) = messages(error)
    assert "number of cells is 1 on " in line
    assert "give the same command on every host" in line
    assert messages(quiet) == []
    assert not (tmp_path / "host0").exists()


def test_tune_under_torchrun_runs_the_trials_that_it_runs_here(tmp_path, istbench):
    words = ["tune", "--workload", "toy", "--methods", "ddp", "--nodes", 2, "--trials", 2, "--json", *SHORT]
    status, out, error = run_on_one([*words, "--out", tmp_path / "together", "--write", tmp_path / "tuned.toml"])
    assert status == 0, error
    assert [contest["method"] for contest in json.loads(out)["methods"]] == ["ddp"]
    assert (tmp_path / "tuned.toml").exists()
    status, _, said = istbench(*words, "--out", tmp_path / "here")
    assert status == 0, said
    assert learned(tmp_path / "together") == learned(tmp_path / "here")


def test_advise_measures_on_the_processes_of_torchrun(tmp_path):
    words = ["advise", "toy", "--nodes", 2, "--bandwidth", "1gbit", "--methods", "local_sgd", "--target", 0.5]
    words += ["--minutes", 0.7, "--threads", 1, "--seeds", 1, "--measure", "--json", "--out", tmp_path / "out"]
    status, out, error = run_on_one(words)
    assert status == 0, error
    advice = json.loads(out)
    assert len(advice["truth"]) == 2, advice
    assert advice["failures"] == {}
    assert 2 in statuses(tmp_path / "out")
