"""The limit on the time of a probe."""

import signal
import threading
import time

import pytest

from istbench.base.interrupts import handle_interrupts
from istbench.studies.advise.time_limit import TimeUp, at_most


@pytest.fixture(autouse=True)
def handled():
    """Handle SIGINT as a command does: a shell that starts tests in the background ignores it."""
    before = signal.getsignal(signal.SIGINT)
    handle_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


def test_the_time_ends_the_block_like_ctrl_c():
    with pytest.raises(TimeUp), at_most(0.05, stopping_s=10.0):
        time.sleep(30)


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_a_time_that_is_up_before_the_start_is_the_same(seconds):
    before = threading.active_count()
    for _ in range(50):
        with pytest.raises(TimeUp), at_most(seconds, stopping_s=10.0):
            time.sleep(30)
    assert threading.active_count() == before


def test_a_block_that_ends_in_time_hears_nothing():
    before = threading.active_count()
    with at_most(30.0, stopping_s=1.0):
        pass
    assert threading.active_count() == before


def test_ctrl_c_stays_ctrl_c():
    with pytest.raises(KeyboardInterrupt), at_most(30.0, stopping_s=1.0):
        signal.raise_signal(signal.SIGINT)


def test_a_block_that_only_takes_note_of_the_first_signal_gets_a_second():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with at_most(0.0, stopping_s=0.05):
            until = time.monotonic() + 30
            while len(heard) < 2 and time.monotonic() < until:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(heard) == 2
