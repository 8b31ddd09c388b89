"""Connections over long links: what they have under way, and how they begin after a pause."""

import math

import pytest
from traces import BANDWIDTH, SIZE, cluster, exactly, trace

from istbench.cluster.profile import Host
from istbench.cluster.simulator import replay

FAR = 0.05  # one way
FIRST = 14_480


def sent(size, peers, pause_s=0.0):
    """Node 0 sends `size` bytes to each of `peers` at once, after a pause; all nodes wait for the end."""
    sender = [("compute", pause_s), *(("post", "send", size, (peer,)) for peer in peers)]
    sender += [("wait", number) for number in range(len(peers))]
    receiver = [("post", "receive", size, (0,)), ("wait", 0)]
    return trace(sender, *[receiver] * len(peers))


def seconds(program, **changes):
    return replay(program, cluster(latency_s=FAR, overhead_s=0.0, **changes)).seconds


def test_a_connection_carries_its_window_once_in_a_round_trip():
    window = 0.25 * BANDWIDTH * 2 * FAR
    assert seconds(sent(SIZE, (1,)), window_bytes=window) == exactly(SIZE / (0.25 * BANDWIDTH) + FAR)
    wide = 8 * window
    assert seconds(sent(SIZE, (1,)), window_bytes=wide) == exactly(SIZE / BANDWIDTH + FAR)


@pytest.mark.parametrize(("peers", "rate"), [(2, 0.25), (3, 0.25), (8, 0.125)])
def test_connections_below_their_windows_share_a_link(peers, rate):
    window = 0.25 * BANDWIDTH * 2 * FAR
    found = seconds(sent(SIZE, tuple(range(1, peers + 1))), window_bytes=window)
    assert found == exactly(SIZE / (rate * BANDWIDTH) + FAR)


def test_a_window_does_not_slow_nodes_of_one_host():
    host = Host(nodes=2, bandwidth=8 * BANDWIDTH, latency_s=0.0)
    assert seconds(sent(SIZE, (1,)), window_bytes=1.0, host=host) == exactly(SIZE / BANDWIDTH)


@pytest.mark.parametrize("size", [FIRST // 2, 8 * FIRST, SIZE])
def test_an_idle_connection_begins_with_ten_segments_and_doubles_them(size):
    most = min(size, BANDWIDTH * 2 * FAR)
    lost = max(0.0, 2 * FAR * math.log2(max(1.0, most / FIRST)) - most / BANDWIDTH)
    plain = seconds(sent(size, (1,), pause_s=1.0))
    assert seconds(sent(size, (1,), pause_s=1.0), slow_start=True) - plain == exactly(lost)
    assert seconds(sent(size, (1,), pause_s=0.1), slow_start=True) == exactly(plain - 0.9)
    assert (lost > 0) == (size > FIRST)
