"""Blocks of work on threads: each once, errors reach the caller."""

import threading
import time

import pytest

from istbench.methods.slide.threads import Threads


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_block_runs_once(count):
    threads, done, lock = Threads(count), [], threading.Lock()

    def work(number):
        with lock:
            done.append(number)

    threads.run(work, 40)
    assert sorted(done) == list(range(40))
    threads.run(work, 0)
    assert len(done) == 40


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 5000])
def test_ranges_cover_everything_once_and_are_cut_at_multiples(length):
    found = []
    Threads(1).ranges(lambda first, last: found.append((first, last)), length, 32)
    assert [number for first, last in found for number in range(first, last)] == list(range(length))
    assert all(first % 32 == 0 for first, _ in found)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_reaches_the_caller(count):
    threads = Threads(count)

    def work(number):
        if number == 7:
            raise KeyError(number)

    with pytest.raises(KeyError):
        threads.run(work, 40)


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_seconds_of_the_busiest_thread_beyond_the_callers_are_told():
    told = []
    threads = Threads(2)
    both = threading.Barrier(2)

    def work(number):
        both.wait(30)  # so each thread takes one block
        spin(0.03 if threading.current_thread() is threading.main_thread() else 0.08)

    threads.telling(told.append).run(work, 2)
    threads.run(lambda number: None, 2)
    assert len(told) == 1
    assert 0.04 < told[0] < 0.08
    alone = Threads(1).telling(told.append)
    alone.run(lambda number: spin(0.001), 3)
    assert len(told) == 1
