"""Connections over long links: what they have under way, and how they begin after a pause."""

import math

import pytest
from traces import BANDWIDTH, SIZE, cluster, exactly, trace

from istbench.cluster.profile import SharedHost
from istbench.cluster.simulator import replay

FAR = 0.05  # one way
FIRST = 14_480
WINDOW = 0.25 * BANDWIDTH * 2 * FAR / (1 - 0.25 / 3)  # a quarter of the bandwidth


def sent(size, peers, pause_s=0.0):
    """Node 0 sends `size` bytes to each of `peers` at once, after a pause; all nodes wait for the end."""
    sender = [("compute", pause_s), *(("post", "send", size, (peer,)) for peer in peers)]
    sender += [("wait", number) for number in range(len(peers))]
    receiver = [("post", "receive", size, (0,)), ("wait", 0)]
    return trace(sender, *[receiver] * len(peers))


def sent_in_two(size):
    """As `sent` to one peer, but in two messages."""
    both = [("wait", 0), ("wait", 1)]
    sender = [("compute", 0.0), *[("post", "send", size, (1,))] * 2, *both]
    return trace(sender, [*[("post", "receive", size, (0,))] * 2, *both])


def seconds(program, **changes):
    return replay(program, cluster(latency_s=FAR, overhead_s=0.0, **changes)).seconds


@pytest.mark.parametrize("windows", [0.5, 1.0, 2.5, 4.0])
def test_a_connection_pauses_after_each_window_until_a_third_is_acknowledged(windows):
    size = SIZE / windows
    far = 1.25 * size / BANDWIDTH  # a round trip takes longer than a window
    pauses = math.ceil(windows) - 1
    found = replay(sent(SIZE, (1,)), cluster(latency_s=far, overhead_s=0.0, window_bytes=size)).seconds
    assert found == exactly(pauses * (2 * far + size / 3 / BANDWIDTH) + (SIZE - pauses * size) / BANDWIDTH + far)


def test_a_window_longer_than_a_round_trip_never_pauses():
    assert seconds(sent(SIZE, (1,)), window_bytes=1.5 * BANDWIDTH * 2 * FAR) == exactly(SIZE / BANDWIDTH + FAR)


def test_the_next_message_has_the_rest_of_the_window():
    size = 2 * SIZE / 2.5
    far = 1.25 * size / BANDWIDTH
    joined, parts = (
        replay(program, cluster(latency_s=far, overhead_s=0.0, window_bytes=size)).seconds
        for program in (sent(2 * SIZE, (1,)), sent_in_two(SIZE))
    )
    assert joined == exactly(parts)


def test_a_very_long_message_takes_a_window_in_each_round_trip():
    size = 1000 * int(WINDOW)
    assert seconds(sent(size, (1,)), window_bytes=WINDOW) == pytest.approx(size / (0.25 * BANDWIDTH), rel=0.02)


@pytest.mark.parametrize(("peers", "rate"), [(2, 0.25), (3, 0.25), (8, 0.125)])
def test_connections_below_their_windows_share_a_link(peers, rate):
    size = 40 * int(WINDOW)
    found = seconds(sent(size, tuple(range(1, peers + 1))), window_bytes=WINDOW)
    assert found == pytest.approx(size / (rate * BANDWIDTH) + FAR, rel=0.03)


def test_a_window_does_not_slow_nodes_of_one_host():
    host = SharedHost(nodes=2, bandwidth=8 * BANDWIDTH, latency_s=0.0)
    assert seconds(sent(SIZE, (1,)), window_bytes=1.0, host=host) == exactly(SIZE / BANDWIDTH)


@pytest.mark.parametrize("size", [FIRST // 2, 8 * FIRST, SIZE])
def test_an_idle_connection_begins_with_ten_segments_and_doubles_them(size):
    most = min(size, BANDWIDTH * 2 * FAR)
    lost = max(0.0, 2 * FAR * math.log2(max(1.0, most / FIRST)) - max(0.0, most - FIRST) / BANDWIDTH)
    plain = seconds(sent(size, (1,), pause_s=1.0))
    assert seconds(sent(size, (1,), pause_s=1.0), slow_start=True) - plain == exactly(lost)
    assert seconds(sent(size, (1,), pause_s=0.1), slow_start=True) == exactly(plain - 0.9)
    assert (lost > 0) == (size > FIRST)


def sent_again(size, pause_s):
    """Node 0 sends `size` bytes to another one, pauses, and sends them again."""
    both = [
        ("post", "send", size, (1,)),
        ("wait", 0),
        ("compute", pause_s),
        ("post", "send", size, (1,)),
        ("wait", 1),
    ]
    return trace(both, [*[("post", "receive", size, (0,))] * 2, ("wait", 0), ("wait", 1)])


@pytest.mark.parametrize("timeouts", [0, 1, 2, 3, 4, 20])
@pytest.mark.parametrize("size", [FIRST // 2, 8 * FIRST, SIZE])
def test_each_timeout_of_idling_halves_what_a_connection_begins_with(size, timeouts):
    most = min(size, BANDWIDTH * 2 * FAR)
    begun = min(most, max(FIRST, 2 * most / 2**timeouts))
    lost = max(0.0, 2 * FAR * math.log2(most / begun) - (most - begun) / BANDWIDTH)
    program = sent_again(size, (timeouts + 0.5) * (0.2 + 2 * FAR))
    assert seconds(program, slow_start=True) - seconds(program) == pytest.approx(lost, abs=1e-9)
    assert (lost > 0) == (timeouts > 1 and size > FIRST and begun < most)
