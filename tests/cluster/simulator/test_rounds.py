"""What is replayed of a sample: all of its rounds, some, or the sample again and again."""

import numpy as np
import pytest
from traces import HOP, LATENCY, SIZE, blocking, cluster, exactly, same, trace

from istbench.cluster.simulator import replay, run
from istbench.cluster.trace import STEP


def test_compute_only_is_scaled_by_the_speeds():
    work = same(3, [("compute", 2.0), ("compute", 1.0)], gflops=50.0)
    assert replay(work, cluster(gflops=100.0)).finish_s.tolist() == [[1.5]] * 3
    assert replay(work, cluster(), compute_scale=2.0).seconds == 6.0


def test_repeating_the_sample_repeats_its_seconds():
    step = [("compute", 0.1), *blocking("all_reduce", SIZE)]
    once = replay(same(4, step), cluster())
    often = replay(same(4, step), cluster(), rounds=50)
    assert often.finish_s[:, -1] == exactly(50 * once.finish_s[:, -1])
    assert often.bytes_sent == exactly(50 * once.bytes_sent)
    assert (np.count_nonzero(often.mark_kind == STEP), often.messages) == (50, 50 * once.messages)


def test_repeating_the_sample_repeats_the_wait_for_a_straggler():
    programs = [[("compute", 1.0 + rank), *blocking("all_reduce", SIZE)] for rank in range(3)]
    work = trace(*[[*program, ("mark", "round"), ("mark", "step")] for program in programs])
    one, many = replay(work, cluster()), replay(work, cluster(), rounds=50)
    assert np.count_nonzero(many.mark_kind == STEP) == 50
    assert many.seconds == exactly(50 * one.seconds)
    assert np.array_equal(replay(work, cluster(), rounds=50).finish_s, many.finish_s)


@pytest.mark.parametrize("order", [("round", "step"), ("step", "round")])
def test_a_part_of_the_sample_ends_with_a_round_and_its_step(order):
    """A method marks a round inside the step that ends it, so the step is marked after it."""
    step = [("compute", 1.0), ("mark", "step")]
    end = [("compute", 1.0), ("mark", order[0]), ("mark", order[1])]
    work = same(2, [*step, *end, *step, *step, *end])
    result = replay(work, cluster(), rounds=3)
    assert (np.count_nonzero(result.mark_kind == STEP), result.seconds) == (7, 7.0)
    assert np.count_nonzero(replay(work, cluster(), rounds=1).mark_kind == STEP) == 2


@pytest.mark.parametrize("compute", [HOP / 4, 2 * HOP])
def test_a_sample_waits_for_messages_of_the_sample_before(compute):
    """A message leaves at the end of each round, while the next round computes, which then waits for it."""

    def program(peer):
        lands, leaves = [("wait_before", kind, (peer,), 0) for kind in ("receive", "send")], [
            ("post", "receive", SIZE, (peer,)), ("post", "send", SIZE, (peer,)),
        ]  # fmt: skip
        return [("compute", compute), *lands, *leaves, ("mark", "round"), ("mark", "step")]

    result = replay(trace(program(1), program(0)), cluster(), rounds=7)
    assert result.finish_s[:, -1] == exactly(np.full(2, compute + 6 * max(compute, HOP)))
    assert result.seconds == exactly(result.finish_s[0, -1] + HOP)


@pytest.fixture
def four_repetitions_at_once(monkeypatch):
    monkeypatch.setattr(run, "_SLOTS_AT_ONCE", 1)


def test_who_runs_ahead_waits_for_room(four_repetitions_at_once):
    """Node 0 waits for nothing: it posts four rounds, and one more whenever the first of them is over."""
    sender = [("post", "send", SIZE, (1,)), ("mark", "step")]
    receiver = [("post", "receive", SIZE, (0,)), ("wait", 0), ("mark", "step")]
    result = replay(trace(sender, receiver), cluster(), rounds=10)
    done = HOP * np.arange(1, 11)
    assert result.finish_s[1] == exactly(done)
    assert result.finish_s[0] == exactly(np.array([0, 0, 0, 0, *done[:6]]))


def test_room_that_comes_when_nothing_else_happens_is_used(four_repetitions_at_once):
    """All four barriers that have room end in the same instant, and no other event follows."""
    work = same(2, [("post", "barrier", 0), ("mark", "step")])
    result = replay(work, cluster(overhead_s=0.0), rounds=12, streams=4)
    assert result.messages == 24
    assert result.finish_s == exactly(LATENCY * np.repeat([[0, 1, 2]] * 2, 4, axis=1))
