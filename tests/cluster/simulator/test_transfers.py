"""Transfers: a send and its receive, in the order of their priorities and of what they come after."""

import numpy as np
import pytest
from traces import FLOW, HOP, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, trace

from istbench.cluster.simulator import replay


def test_a_transfer_starts_when_both_ends_are_there():
    result = replay(
        trace(blocking("send", SIZE, (1,)), [("compute", 0.5), *blocking("receive", SIZE, (0,))]), cluster()
    )
    assert result.finish_s[:, 0] == exactly(np.array([0.5 + OVERHEAD + FLOW, 0.5 + HOP]))


def test_seconds_end_when_all_that_was_sent_is_there():
    result = replay(trace([("post", "send", SIZE, (1,))], [("post", "receive", SIZE, (0,))]), cluster())
    assert result.finish_s.max() == 0
    assert result.seconds == exactly(HOP)


def test_a_send_comes_after_what_it_depends_on():
    """A parameter server's replies wait for both pushes, and the server does not."""
    server = [
        ("post", "receive", SIZE, (1,)),
        ("post", "receive", SIZE, (2,)),
        ("post", "send", SIZE, (1,), 0, (0, 1)),
        ("post", "send", SIZE, (2,), 0, (0, 1)),
    ]
    worker = [("post", "send", SIZE, (0,)), ("post", "receive", SIZE, (0,)), ("wait", 0), ("wait", 1)]
    result = replay(trace(server, [("compute", 1.0), *worker], worker), cluster())
    replied = 1 + HOP + OVERHEAD + 2 * FLOW + LATENCY
    assert result.finish_s[:, 0] == exactly(np.array([0.0, replied, replied]))


def queued(priorities, window):
    """Seconds at which sends posted at once with `priorities` have arrived."""
    sender = [("post", "send", SIZE, (1,), priority) for priority in priorities]
    receiver = [("post", "receive", SIZE, (0,)) for _ in priorities]
    result = replay(trace([("compute", 0.0), *sender], receiver), cluster(), window=window, spans=True)
    return [span.op for span in result.spans if span.activity == "message"]


def test_urgent_sends_overtake_what_is_not_in_the_window():
    """Receives come one at a time in the same instant, so the first messages go straight into the window."""
    assert queued([5, 5, 5, 1], window=1) == [0, 3, 1, 2]
    assert queued([5, 5, 5, 1], window=2) == [0, 1, 3, 2]
    assert queued([5, 5, 5, 1], window=4) == [0, 1, 2, 3]


@pytest.mark.parametrize(("window", "before"), [(1, 1), (2, 2), (4, 3)])
def test_an_urgent_message_overtakes_all_but_what_the_connection_holds(window, before):
    """Four messages, the last the most urgent; the receiver says when it has that."""
    posts = [
        [("post", kind, SIZE, (peer,), priority) for priority in (3, 2, 1, 0)]
        for kind, peer in (("send", 1), ("receive", 0))
    ]
    waits = [("wait", op) for op in range(4)]
    work = trace([*posts[0], *waits, ("mark", "step")], [*posts[1], ("wait", 3), ("mark", "step"), *waits])
    got_it = replay(work, cluster(), window=window).finish_s[1, 0]
    # Those that the connection holds are prepared while others flow.
    prepared = before + 1 if window == 1 else 1
    assert got_it == exactly((before + 1) * FLOW + prepared * OVERHEAD + LATENCY)


def test_equal_priorities_go_in_the_order_in_which_they_are_ready():
    # The send posted second waits for a message; by when that is there, the third is in the queue.
    sender = [
        ("post", "receive", SIZE / 10, (1,)),
        ("post", "send", SIZE, (1,)),
        ("post", "send", SIZE, (1,), 0, (0,)),
        ("post", "send", 2 * SIZE, (1,)),
        ("wait", 2),
    ]
    receiver = [("post", "send", SIZE / 10, (0,))] + [
        ("post", "receive", size, (0,)) for size in (SIZE, SIZE, 2 * SIZE)
    ]
    result = replay(trace(sender, receiver), cluster(), window=1)
    assert result.finish_s[0].max() == exactly(3 * OVERHEAD + 4 * FLOW)


def test_equal_priorities_go_in_posted_order():
    assert queued([3] * 6, window=1) == list(range(6))
    assert queued([9, 2, 3, 2, 3, 2], window=1) == [0, 1, 3, 5, 2, 4]
