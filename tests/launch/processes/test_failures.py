"""The cause among many failures: one message."""

import json
import os

import pytest
import torch

from istbench.base.activity import Activity
from istbench.base.errors import RunFailed, UserError
from istbench.launch.processes.failures import (
    PeersLost,
    WorkerLost,
    activity_path,
    describe,
    failure_path,
    launcher_stood,
    log_directory,
    same_command,
)
from istbench.launch.processes.worker import run_and_report


@pytest.fixture
def say(tmp_path):
    """Write a worker's failure report and its output."""

    def say(rank, kind=None, message="", printed=""):
        log_directory(tmp_path, rank).mkdir(exist_ok=True)
        (log_directory(tmp_path, rank) / "stderr.log").write_text(printed)
        if kind:
            failure_path(tmp_path, rank).write_text(json.dumps({"kind": kind, "message": message}))

    return say


def test_what_the_user_can_mend_comes_first(tmp_path, say):
    say(0, "error", "KeyError: 'a'")
    say(1, "user", "no such file")
    error = describe({0: 1, 1: 1}, tmp_path)
    assert isinstance(error, UserError)
    assert str(error) == "no such file"


def test_a_killed_worker_is_the_cause_of_its_peers_lost_connections(tmp_path, say):
    say(0, "fabric", "rank 2 was silent")
    say(2, printed="\n".join(f"line {number}" for number in range(9)))
    error = describe({0: 1, 2: -9}, tmp_path)
    assert isinstance(error, RunFailed)
    lines = str(error).splitlines()
    assert lines[0] == "worker 2 was killed by SIGKILL; its last lines:"
    assert lines[1:] == [f"  line {number}" for number in range(4, 9)]


def test_memory_is_the_cause_of_a_kill_only_where_the_kernel_says_so(tmp_path, say):
    say(2)
    killed = "worker 2 was killed by SIGKILL (the kernel killed a process for lack of memory: see `istbench plan`)"
    assert str(describe({2: -9}, tmp_path, oom=True)) == f"{killed}; it printed nothing"
    assert str(describe({2: -15}, tmp_path, oom=True)) == "worker 2 was killed by SIGTERM; it printed nothing"


def test_a_worker_that_is_gone_is_said_with_what_it_did_and_the_way_out(tmp_path, say):
    say(1, printed="a last line")
    activity = Activity()
    activity.share(activity_path(tmp_path, 1))
    activity.begin("computing training step", 7)
    error = describe({1: -15}, tmp_path)
    assert isinstance(error, WorkerLost)
    told = [str(error.with_way_out(way_out)) for way_out in (same_command(4), same_command(0))]
    killed = "worker 1 was killed by SIGTERM while computing training step 7; the same command"
    assert told == [
        f"{killed} resumes from the checkpoint of step 4; its last lines:\n  a last line",
        f"{killed} starts from step 0: no checkpoint was written yet; its last lines:\n  a last line",
    ]
    say(1, "error", "ValueError: no", printed="a last line")
    said = "worker 1 failed while computing training step 7: ValueError: no; its"
    assert str(describe({1: 1}, tmp_path)).startswith(said)


def test_a_launcher_that_stood_still_is_the_cause_of_silence_in_its_store():
    error = launcher_stood(19.4, PeersLost("worker 1 failed: no answer from the store"))
    assert not isinstance(error, PeersLost)
    assert str(error) == (
        "the launcher stood still for 19 s, stopped by a signal such as SIGSTOP, and its store did not answer the "
        "workers (worker 1 failed: no answer from the store)"
    )


def test_an_error_comes_before_what_peers_saw_of_it(tmp_path, say):
    say(0, "fabric", "rank 1 was silent")
    say(1, "error", "ValueError: no", printed="Traceback\n\n")
    assert str(describe({0: 1, 1: 1}, tmp_path)) == "worker 1 failed: ValueError: no; its last lines:\n  Traceback"


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda: torch.empty(2**60), " when it asked for 4611686018427387904 bytes more"),
        (lambda: bytearray(2**62), ""),
        (
            lambda: refuse(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0")),
            " when it asked for 2.50 GiB more",
        ),
    ],
)
def test_memory_that_could_not_be_had_is_one_line(tmp_path, monkeypatch, capsys, fails, said):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(os, "_exit", lambda status: None)
    failure_path(tmp_path, 1).parent.mkdir(parents=True)
    run_and_report(fails, (), tmp_path)
    assert "Traceback" in capsys.readouterr().err
    error = str(describe({1: 1}, tmp_path))
    assert error.startswith(f"worker 1 ran out of memory{said}; use fewer nodes")
    assert len(error.splitlines()) == 1


def refuse(error):
    raise error


def test_a_silent_network_is_said_without_a_traceback(tmp_path, say):
    say(10, "fabric", "rank 2 was silent", printed="Traceback")
    say(9, "fabric", "rank 2 was late", printed="Traceback")
    assert str(describe({10: 1, 9: 1}, tmp_path)) == "worker 9 failed: rank 2 was late"


def test_a_worker_that_fell_before_it_had_a_log(tmp_path):
    error = describe({3: 1}, tmp_path, early="ImportError: no module\n")
    assert str(error) == "worker 3 ended with exit status 1; its last lines:\n  ImportError: no module"
    assert str(describe({3: 2}, tmp_path)) == "worker 3 ended with exit status 2; it printed nothing"


@pytest.mark.parametrize(
    "written", ['{"kind": "err', "5", "null", "[1]", '{"kind": "user"}', '{"kind": "x", "message": ""}', "[" * 9**5]
)
def test_an_incomplete_failure_report_counts_as_none(tmp_path, say, written):
    say(0, "error", "ValueError: no", printed="No space left")
    failure_path(tmp_path, 0).write_text(written)
    assert str(describe({0: 1}, tmp_path)).startswith("worker 0 ended with exit status 1; its last lines:")


def test_a_run_that_went_wrong_in_words_of_its_own_is_said_as_it_is(tmp_path, say):
    say(0, "fabric", "rank 1 was silent")
    say(1, "run", "the loss became nan", printed="Traceback")
    error = describe({0: 1, 1: 1}, tmp_path)
    assert isinstance(error, RunFailed)
    assert str(error) == "the loss became nan"
