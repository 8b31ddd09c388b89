"""Links: the messages that flow at one time share them max-min fairly."""

import numpy as np
import pytest
from traces import BANDWIDTH, FLOW, HOP, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, trace, transfers

from istbench.cluster.simulator import replay


def test_two_receivers_share_the_outgoing_link():
    sender = [("post", "send", SIZE, (1,)), ("post", "send", 2 * SIZE, (2,)), ("wait", 0), ("wait", 1)]
    result = replay(trace(sender, blocking("receive", SIZE, (0,)), blocking("receive", 2 * SIZE, (0,))), cluster())
    assert result.finish_s[1:, 0] == exactly(OVERHEAD + LATENCY + FLOW * np.array([2.0, 3.0]))


def test_two_senders_share_the_incoming_link():
    receiver = [("post", "receive", SIZE, (1,)), ("post", "receive", SIZE, (2,)), ("wait", 0), ("wait", 1)]
    result = replay(trace(receiver, blocking("send", SIZE, (0,)), blocking("send", SIZE, (0,))), cluster())
    assert result.seconds == exactly(OVERHEAD + LATENCY + 2 * FLOW)
    wide = replay(
        trace(receiver, blocking("send", SIZE, (0,)), blocking("send", SIZE, (0,))),
        cluster(bandwidth_in=16 * BANDWIDTH),
    )
    assert wide.seconds == exactly(HOP)
    assert wide.link_use == exactly(FLOW / HOP)


def test_sharing_is_max_min_fair():
    """Node 0 sends to 1, 2 and 3 and node 4 to 3; node 5 to 4, alone: 1/3, 1/3, 1/3, 2/3 and 1 of a link."""
    sizes = {(0, 1): SIZE, (0, 2): SIZE, (0, 3): SIZE, (4, 3): 2 * SIZE, (5, 4): 3 * SIZE}
    found = replay(transfers(sizes, 6), cluster())
    assert found.finish_s[1:5, 0] == exactly(np.full(4, OVERHEAD + 3 * FLOW + LATENCY))


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ({(0, 1): 1_000_000}, 1.0),
        ({(0, 1): 1_000_000, (1, 0): 1_000_000}, 1.0),  # full duplex
        ({(0, 1): 1_000_000, (0, 2): 1_000_000}, 2.0),  # share the way out
        ({(0, 2): 1_000_000, (1, 2): 1_000_000}, 2.0),  # share the way in
        ({(0, 1): 1_000_000, (2, 1): 1_000_000, (2, 0): 500_000}, 2.0),  # 0.5 of node 2's link is left to 2-0
    ],
)
def test_links_are_shared_fairly(sizes, seconds):
    result = replay(transfers(sizes, 3), cluster())
    assert result.seconds == exactly(seconds + LATENCY + OVERHEAD)
    assert result.bytes_sent.sum() == result.bytes_received.sum() == sum(sizes.values())


def test_half_duplex_shares_one_link_both_ways():
    both = [
        [("post", "send", SIZE, (other,)), ("post", "receive", SIZE, (other,)), ("wait", 0), ("wait", 1)]
        for other in (1, 0)
    ]
    assert replay(trace(*both), cluster()).seconds == exactly(HOP)
    assert replay(trace(*both), cluster(full_duplex=False)).seconds == exactly(HOP + FLOW)
