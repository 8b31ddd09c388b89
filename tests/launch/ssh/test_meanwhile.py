"""What is brought again and again while a run goes on: through failures, and stopped at once."""

import threading

import pytest

from istbench.launch.ssh import meanwhile
from istbench.launch.ssh.connection import Lost, Refused
from istbench.launch.ssh.meanwhile import Meanwhile


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(meanwhile, "_EVERY_S", 0.001)


def test_a_failure_is_said_once_and_does_not_end_it():
    outcomes = [Refused("full"), Refused("full"), None, Lost("slow"), Refused("gone"), None]
    over, said = threading.Event(), []

    def bring(_pace):
        outcome = outcomes.pop(0)
        if not outcomes:
            over.set()
            keeping.stop()
        if outcome is not None:
            raise outcome

    keeping = Meanwhile(bring, said.append)
    keeping.start()
    assert over.wait(10)
    keeping.join()
    assert outcomes == []
    assert said == [f"the run does not come home meanwhile: {why}" for why in ("full", "gone")]


def test_a_large_file_is_left_half_way_when_the_run_is_over():
    resting, went_on = threading.Event(), []

    def bring(pace):
        resting.set()
        pace(1000.0)
        went_on.append(True)

    keeping = Meanwhile(bring, went_on.append)
    keeping.start()
    assert resting.wait(10)
    keeping.join()
    assert went_on == []


def test_what_was_never_started_can_be_stopped():
    keeping = Meanwhile(lambda pace: None, print)
    keeping.stop()
    keeping.join()
