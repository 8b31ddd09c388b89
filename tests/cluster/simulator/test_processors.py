"""What nodes compute beside their training thread, and what carrying messages takes from both."""

import pytest
from traces import BANDWIDTH, FLOW, HOP, LATENCY, OVERHEAD, SIZE, cluster, exactly, same, trace

from istbench.cluster.simulator import replay


def end(program, **changes):
    return replay(same(1, program), cluster(**changes), compute_scale=1.0).seconds


def work(builder_seconds, **changes):
    """A trace of one node, with the seconds of its pieces of work filled in, as the recorder does."""
    program, seconds = builder_seconds
    made = same(1, program)
    posts = made.nodes[0]["code"] == 1
    made.nodes[0]["seconds"][posts] = seconds
    return replay(made, cluster(**changes), compute_scale=1.0)


BESIDE = [("post", "work", 0), ("compute", 1.0), ("wait", 0)], [0.4]


def test_work_goes_on_beside_computing_where_cores_are_not_counted():
    assert work(BESIDE).seconds == exactly(1.0)


@pytest.mark.parametrize("cores", [0.5, 1])
def test_on_at_most_one_core_the_two_share_it(cores):
    # Both at half speed until the work is done at .8, which leaves .6 to compute.
    assert work(BESIDE, cores=cores).seconds == exactly(1.4)


def test_on_four_cores_a_fifth_of_the_threads_is_the_work():
    # 4/5 of the speed until the work is done at .5, which leaves .6 to compute.
    assert work(BESIDE, cores=4).seconds == exactly(1.1)


@pytest.mark.parametrize("cores", [0.5, 1])
def test_waiting_for_work_counts_as_computing(cores):
    found = work(([("post", "work", 0), ("wait", 0)], [0.4]), cores=cores)
    assert found.seconds == exactly(0.4)
    assert found.compute_s[0, -1] == exactly(0.4)


def test_the_most_urgent_work_is_next():
    program = [
        ("post", "work", 0),  # runs at once
        ("post", "work", 0, (), 5),
        ("post", "work", 0, (), 1),
        ("wait", 2),
        ("mark", "step"),
        ("wait", 1),
        ("mark", "step"),
    ]
    found = work((program, [0.1, 0.2, 0.4]))
    assert found.finish_s[0].tolist() == [exactly(0.5), exactly(0.7)]


def test_work_and_what_follows_it_wait_for_what_they_come_after():
    # Node 1 pushes; node 0 updates for half a second and replies.
    server = [
        ("post", "receive", SIZE, (1,)),
        ("post", "work", 0, (), 0, (0,)),
        ("post", "send", SIZE, (1,), 0, (1,)),
        ("wait", 2),
    ]
    worker = [("post", "send", SIZE, (0,)), ("post", "receive", SIZE, (0,)), ("wait", 1)]
    made = trace(server, worker)
    made.nodes[0]["seconds"][made.nodes[0]["kind"] == 6] = 0.5
    found = replay(made, cluster(), compute_scale=1.0)
    assert found.seconds == exactly(HOP + 0.5 + HOP)


def sends_while_computing(seconds, **changes):
    sender = [("post", "send", SIZE, (1,)), ("compute", seconds), ("wait", 0)]
    receiver = [("post", "receive", SIZE, (0,)), ("wait", 0)]
    return replay(trace(sender, receiver), cluster(**changes), compute_scale=1.0).finish_s[0, -1]


def test_carrying_bytes_takes_from_the_cores():
    # A quarter of the core for as long as bytes flow.
    load = 0.25
    seconds = sends_while_computing(1.0, cores=1, cpu_s_per_byte=load / BANDWIDTH)
    assert seconds == exactly(1.0 + load * FLOW)
    assert sends_while_computing(1.0, cores=2, cpu_s_per_byte=load / BANDWIDTH) == exactly(1.0 + load / 2 * FLOW)
    assert sends_while_computing(1.0, cpu_s_per_byte=load / BANDWIDTH) == exactly(1.0)


def test_every_message_takes_from_computing():
    sender = [("post", "send", SIZE, (1,)), ("compute", 1.0), ("wait", 0)]
    receiver = [("post", "receive", SIZE, (0,)), ("compute", 1.0), ("wait", 0)]
    found = replay(trace(sender, receiver), cluster(cores=2, cpu_s_per_message=0.01), compute_scale=1.0)
    assert found.finish_s[:, -1].tolist() == [exactly(1.005), exactly(1.005)]


@pytest.mark.parametrize("cores", [None, 1, 4])
def test_computing_alone_is_as_fast_as_it_was_recorded(cores):
    assert end([("compute", 0.3), ("compute", 0.2)], cores=cores) == exactly(0.5)


def test_what_an_idle_link_has_saved_goes_at_once():
    burst = SIZE // 4
    send = [("post", "send", SIZE, (1,)), ("wait", 0), ("compute", 1.0), ("mark", "step")]
    receive = [("post", "receive", SIZE, (0,)), ("wait", 0), ("compute", 1.0), ("mark", "step")]
    found = replay(trace(send * 1, receive), cluster(burst_bytes=burst), compute_scale=1.0, rounds=2)
    once = OVERHEAD + (SIZE - burst) / BANDWIDTH
    assert found.finish_s[1].tolist() == [exactly(once + LATENCY + 1.0), exactly(2 * (once + LATENCY + 1.0))]


def test_a_busy_link_saves_nothing():
    burst = SIZE // 4
    posts = [("post", "send", SIZE, (1,)) for _ in range(3)]
    sender = [*posts, *[("wait", number) for number in range(3)]]
    receiver = [("post", "receive", SIZE, (0,)) for _ in range(3)] + [("wait", number) for number in range(3)]
    found = replay(trace(sender, receiver), cluster(burst_bytes=burst, overhead_s=0.0), compute_scale=1.0)
    assert found.seconds == exactly((3 * SIZE - burst) / BANDWIDTH + LATENCY)
