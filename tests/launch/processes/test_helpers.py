"""A fork server that a signal stops: workers start, their ends are known, and nothing waits for ever."""

import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import jobs
import pytest

from istbench.base.errors import RunFailed
from istbench.launch.processes import helpers, local
from istbench.launch.processes.launcher import Job, launch
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.stuck import exit_code_of, state_of

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def modules_of_tests(monkeypatch):
    """Let a fork server that takes another's place import the tests' modules, for the files behind this one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(local, "GRACE_S", 0.5)


@pytest.fixture
def stays_stopped(monkeypatch):
    """A signal cannot continue the fork server."""
    monkeypatch.setattr(local, "continue_stopped", lambda: None)
    monkeypatch.setattr(helpers, "continue_stopped", lambda: None)


def stop_fork_server():
    local.preload()
    process = forkserver._forkserver._forkserver_pid
    os.kill(process, signal.SIGSTOP)
    while state_of(process) != "T":
        time.sleep(0.01)
    return process


def job(tmp_path, target, *args, **fields):
    return Job(target=target, args=args, nodes=2, logs=tmp_path / "logs", **fields)


def test_a_fork_server_that_is_stopped_before_a_run_is_continued_and_named(tmp_path, capfd):
    process = stop_fork_server()
    launch(LocalLauncher(), job(tmp_path, jobs.write_environment, str(tmp_path)))
    assert (tmp_path / "1").exists()
    said = f"SIGSTOP) stopped the fork server, the parent process of all workers, (process {process}); istbench"
    assert said in capfd.readouterr().err


def test_a_worker_that_does_not_start_in_time_is_named_and_the_next_one_starts(
    tmp_path, monkeypatch, short_grace, stays_stopped
):
    stopped = stop_fork_server()
    with monkeypatch.context() as patch:
        patch.setattr(local, "_IMPORTS_S", 1.0)
        slow = job(tmp_path, jobs.write_environment, str(tmp_path), timeout_s=1.0)
        with pytest.raises(RunFailed) as failure:
            launch(LocalLauncher(), slow)
    said = "the fork server, the parent process of all workers, started no worker 0 within 2 s"
    assert str(failure.value).startswith(said)
    launch(LocalLauncher(), job(tmp_path, jobs.write_environment, str(tmp_path)))
    assert forkserver._forkserver._forkserver_pid != stopped


def test_a_run_whose_workers_are_done_ends_without_a_report_of_the_fork_server(
    tmp_path, short_grace, stays_stopped
):
    launch(LocalLauncher(), job(tmp_path, jobs.stop_the_fork_server, str(tmp_path), 0))


def test_a_worker_that_fails_is_named_without_a_report_of_the_fork_server(tmp_path, short_grace, stays_stopped):
    with pytest.raises(RunFailed, match="^worker 1 ended with exit status 7"):
        launch(LocalLauncher(), job(tmp_path, jobs.stop_the_fork_server, str(tmp_path), 7))


def test_a_worker_that_hangs_after_its_job_is_ended(tmp_path, short_grace):
    launch(LocalLauncher(), job(tmp_path, jobs.never_end_after_the_job))


def test_the_exit_code_of_a_process_that_nobody_has_awaited():
    process = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
    try:
        while state_of(process) != "Z":
            time.sleep(0.01)
        assert exit_code_of(process) == 3
        assert exit_code_of(os.getpid()) is None
    finally:
        os.waitpid(process, 0)
    assert exit_code_of(process) is None
