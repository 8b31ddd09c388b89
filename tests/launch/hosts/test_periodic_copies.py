"""Copies of a run while it trains: they survive failures, end at once, and take a share of the time."""

import threading

import pytest

from istbench.launch.hosts import run_copies
from istbench.launch.hosts.connection import Lost, Refused
from istbench.launch.hosts.run_copies import Share, periodic_copies


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(run_copies, "_EVERY_S", 0.001)


def test_a_failure_is_said_once_and_does_not_end_it():
    outcomes = [Refused("full"), Refused("full"), None, Lost("slow"), Refused("gone"), None]
    over, said = threading.Event(), []

    def bring(_throttle):
        outcome = outcomes.pop(0) if outcomes else None
        if not outcomes:
            over.set()
        if outcome is not None:
            raise outcome

    with periodic_copies(bring, said.append, 60.0):
        assert over.wait(10)
    assert outcomes == []
    assert said == [f"cannot copy the run here while it trains: {why}" for why in ("full", "gone")]


def test_a_large_file_is_left_half_way_when_the_run_is_over():
    resting, went_on = threading.Event(), []

    def bring(throttle):
        resting.set()
        throttle(1000.0, 1, 10**6)
        went_on.append(True)

    with periodic_copies(bring, went_on.append, 60.0):
        assert resting.wait(10)
    assert went_on == []


def brought(megabytes, rate, within_s):
    """Seconds until so many megabytes are here at `rate` MB/s, and the share of them in which they are sent."""
    share, now = Share(within_s, 0.0), 0.0
    for left in reversed(range(megabytes)):
        now += 1 / rate
        now += share.rest_s(1 / rate, 10**6, left * 10**6, now)
    return now, megabytes / rate / now


def test_a_checkpoint_is_here_in_time_by_no_more_of_the_link_than_that_takes():
    seconds, share = brought(135, 12.5, 45.0)
    assert seconds == pytest.approx(45.0, rel=0.05)
    assert share == pytest.approx(0.24, rel=0.05)


def test_a_small_one_takes_a_tenth_and_what_does_not_fit_a_half():
    assert brought(20, 12.5, 45.0) == (pytest.approx(16.0, rel=0.05), pytest.approx(0.1, rel=0.06))
    assert brought(1000, 12.5, 45.0) == (pytest.approx(160.0, rel=0.05), pytest.approx(0.5, rel=0.05))


def test_a_link_that_slows_down_is_taken_more_of():
    share = Share(45.0, 0.0)
    first = share.rest_s(0.1, 10**6, 50 * 10**6, 1.0)
    assert share.rest_s(0.4, 10**6, 49 * 10**6, 2.0) / 0.4 < first / 0.1


def test_what_is_all_here_is_not_rested_after():
    assert Share(45.0, 0.0).rest_s(1.0, 10**6, 0, 1.0) == 0
