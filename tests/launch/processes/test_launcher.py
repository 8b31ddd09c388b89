"""Starting, watching and ending, whatever comes between: with workers that are only pretended."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from istbench.base.errors import RunFailed, UserError
from istbench.launch.processes import launcher as launcher_module
from istbench.launch.processes.failures import PeersLost, WorkerLost
from istbench.launch.processes.launcher import Job, launch
from istbench.node.stopping import StopRequest

ENDING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
JOB = Job(target=print, nodes=2, logs=Path("nowhere"))


class Pretended:
    """A launcher, and its workers: notes what is called, and does what it is told to there."""

    def __init__(self, **actions):
        self.actions, self.calls = actions, []

    def start(self, job):
        self._call("start")
        return self

    def wait(self):
        self._call("wait")

    def end(self):
        self._call("end")

    def _call(self, name):
        self.calls.append(name)
        self.actions.get(name, lambda: None)()
        self.calls.append(f"{name} returned")


def send(*numbers):
    """To this process, in turn; the handlers have run when this returns or raises."""
    return lambda: [os.kill(os.getpid(), number) for number in numbers]


def fail():
    raise RunFailed("worker 0 was killed")


def lose():
    raise WorkerLost("worker 0 was killed by SIGTERM")


@pytest.fixture(autouse=True)
def handlers():
    """Those of before are there afterwards; none of them is the tests' own environment's."""
    found = [signal.signal(number, signal.SIG_DFL) for number in ENDING]
    yield
    left = [signal.signal(number, handler) for number, handler in zip(ENDING, found, strict=True)]
    assert left == [signal.SIG_DFL] * len(ENDING)


def test_a_job_that_ends_well():
    launcher = Pretended()
    launch(launcher, JOB)
    assert launcher.calls == ["start", "start returned", "wait", "wait returned", "end", "end returned"]


def test_a_job_that_fails_is_ended():
    launcher = Pretended(wait=fail)
    with pytest.raises(RunFailed, match="worker 0 was killed"):
        launch(launcher, JOB)
    assert launcher.calls == ["start", "start returned", "wait", "end", "end returned"]


def test_what_does_not_start_is_not_ended():
    launcher = Pretended(start=fail)
    with pytest.raises(RunFailed):
        launch(launcher, JOB)
    assert launcher.calls == ["start"]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_the_watching(number):
    launcher = Pretended(wait=send(number))
    with pytest.raises(KeyboardInterrupt, match=number.name):
        launch(launcher, JOB)
    assert launcher.calls == ["start", "start returned", "wait", "end", "end returned"]


def test_a_signal_while_starting_waits_until_all_are_started():
    launcher = Pretended(start=send(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        launch(launcher, JOB)
    assert launcher.calls == ["start", "start returned", "end", "end returned"]


@pytest.mark.parametrize("failure", [{}, {"wait": lose}, {"wait": send(signal.SIGINT)}])
def test_a_signal_while_ending_waits_until_all_are_ended(failure):
    launcher = Pretended(end=send(signal.SIGTERM), **failure)
    with pytest.raises(KeyboardInterrupt):
        launch(launcher, JOB)
    assert launcher.calls[-2:] == ["end", "end returned"]


def test_a_job_under_nohup_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    launcher = Pretended(wait=send(signal.SIGHUP))
    try:
        launch(launcher, JOB)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert launcher.calls[-3:] == ["wait returned", "end", "end returned"]


@pytest.fixture
def stoppable(tmp_path):
    """A job whose workers heed a request to stop."""
    request = StopRequest(tmp_path)
    request.worker_ready()
    return Job(target=print, nodes=2, logs=Path("nowhere"), stop=request)


def test_the_first_signal_asks_workers_to_stop_and_what_they_do_is_waited_for(stoppable, capfd):
    def stop_as_asked():
        send(signal.SIGINT)()
        assert stoppable.stop.requested()

    launcher = Pretended(wait=stop_as_asked)
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        launch(launcher, stoppable)
    assert launcher.calls == ["start", "start returned", "wait", "wait returned", "end", "end returned"]
    assert capfd.readouterr().err.startswith("stopping after the next steps with a checkpoint")


def test_a_signal_that_comes_twice_at_once_is_one(stoppable):
    """As `timeout` sends it: to its command, and to the process group of the command."""
    launcher = Pretended(wait=send(signal.SIGTERM, signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        launch(launcher, stoppable)
    assert launcher.calls == ["start", "start returned", "wait", "wait returned", "end", "end returned"]


def test_a_second_signal_ends_them_at_once(stoppable):
    launcher = Pretended(wait=send(signal.SIGINT, signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        launch(launcher, stoppable)
    assert launcher.calls == ["start", "start returned", "wait", "end", "end returned"]


def test_workers_have_the_time_that_a_large_checkpoint_takes(stoppable, monkeypatch, capfd):
    """Ten seconds were too few for 10.6 GB."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)

    def write_for_long():
        send(signal.SIGINT)()
        assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]

    launcher = Pretended(wait=write_for_long)
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        launch(launcher, stoppable)
    assert "wait returned" in launcher.calls
    assert capfd.readouterr().err == (
        "stopping after the next steps with a checkpoint, however long that takes; a second signal ends the run at "
        "once\n"
    )


@pytest.mark.parametrize(("limit", "within_s"), [(None, 20), ("", 20), ("600", 590), ("0", 0), ("8", 4)])
def test_workers_stop_before_torchrun_kills_their_launcher(limit, within_s):
    given = {} if limit is None else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": limit}
    assert launcher_module.stops_within_s(given) is None
    assert launcher_module.stops_within_s({"TORCHELASTIC_RUN_ID": "none", **given}) == within_s


def test_workers_that_do_not_stop_in_time_under_torchrun_are_ended(stoppable, monkeypatch, capfd):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")

    def never_stop():
        send(signal.SIGINT)()
        time.sleep(60)

    launcher = Pretended(wait=never_stop)
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        launch(launcher, stoppable)
    assert launcher.calls == ["start", "start returned", "wait", "end", "end returned"]
    assert "within 0.5 s, before torchrun ends it" in capfd.readouterr().err


def test_workers_that_do_not_train_yet_are_ended_at_once(tmp_path):
    launcher = Pretended(wait=send(signal.SIGINT))
    job = Job(target=print, nodes=2, logs=Path("nowhere"), stop=StopRequest(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        launch(launcher, job)
    assert launcher.calls == ["start", "start returned", "wait", "end", "end returned"]


@pytest.mark.parametrize("failure", [UserError("cannot write the checkpoint"), RunFailed("the loss became nan")])
def test_a_failure_of_the_workers_after_a_request_to_stop_is_the_cause(stoppable, failure):
    def fail_after_the_signal():
        send(signal.SIGINT)()
        raise failure

    with pytest.raises(KeyboardInterrupt) as raised:
        launch(Pretended(wait=fail_after_the_signal), stoppable)
    assert raised.value.__cause__ is failure


@pytest.mark.parametrize("failure", [WorkerLost("worker 1 was killed by SIGHUP"), PeersLost("worker 0 failed")])
def test_workers_that_the_same_signal_killed_are_no_cause(stoppable, failure):
    def die_of_the_signal():
        send(signal.SIGHUP)()
        raise failure

    with pytest.raises(KeyboardInterrupt, match="SIGHUP") as raised:
        launch(Pretended(wait=die_of_the_signal), stoppable)
    assert raised.value.__cause__ is None


def test_a_failure_that_follows_an_interruption_is_no_cause():
    def fail_in_turn():
        try:
            send(signal.SIGINT)()
        except KeyboardInterrupt:
            fail()

    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        launch(Pretended(wait=fail_in_turn), JOB)
