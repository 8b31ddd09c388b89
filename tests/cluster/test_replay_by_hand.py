"""The replay against figures that can be worked out by hand."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, cluster, random_trace, same, trace

from istbench.cluster.simulator import replay
from istbench.cluster.trace import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, POST, RECEIVE, SEND
from istbench.errors import UserError

SIZE = 60_000
FLOW = SIZE / BANDWIDTH
HOP = OVERHEAD + FLOW + LATENCY


def exactly(seconds):
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)


def blocking(kind, bytes=0, peers=()):
    return [("post", kind, bytes, peers), ("wait", 0)]


def test_compute_only_is_scaled_by_the_speeds():
    work = same(3, [("compute", 2.0), ("compute", 1.0)], gflops=50.0)
    assert replay(work, cluster(gflops=100.0)).finish_s.tolist() == [[1.5]] * 3
    assert replay(work, cluster(), compute_scale=2.0).seconds == 6.0


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8])
def test_ring_all_reduce(nodes):
    result = replay(same(nodes, blocking("all_reduce", SIZE)), cluster())
    seconds = 2 * (nodes - 1) * (SIZE / nodes / BANDWIDTH + LATENCY + OVERHEAD)
    assert result.finish_s[:, 0] == exactly(np.full(nodes, seconds))
    assert result.bytes_sent == exactly(np.full(nodes, 2 * (nodes - 1) * SIZE / nodes))
    assert result.messages == 2 * nodes * (nodes - 1)


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_ring_all_gather(nodes):
    result = replay(same(nodes, blocking("all_gather", SIZE)), cluster())
    assert result.finish_s[:, 0] == exactly(np.full(nodes, (nodes - 1) * HOP))


def test_all_gather_of_unequal_parts_sends_each_part_round_the_ring():
    result = replay(trace(*[blocking("all_gather", size) for size in (10_000, 20_000, 60_000)]), cluster())
    assert result.bytes_sent.tolist() == [70_000.0, 30_000.0, 80_000.0]
    assert result.finish_s[1, 0] == exactly(2 * (OVERHEAD + LATENCY) + 120_000 / BANDWIDTH)


@pytest.mark.parametrize(("nodes", "root"), [(1, 0), (2, 1), (4, 3), (8, 2)])
def test_broadcast_is_a_binomial_tree(nodes, root):
    result = replay(same(nodes, blocking("broadcast", SIZE, (root,))), cluster())
    depth = nodes.bit_length() - 1
    assert result.seconds == exactly(depth * HOP)
    assert result.finish_s[root, 0] == exactly(depth * (OVERHEAD + FLOW))
    assert result.bytes_sent.sum() == (nodes - 1) * SIZE


@pytest.mark.parametrize(("nodes", "rounds"), [(1, 0), (2, 1), (5, 3), (8, 3)])
def test_barrier_is_by_dissemination(nodes, rounds):
    result = replay(same(nodes, blocking("barrier")), cluster())
    assert result.finish_s[:, 0] == exactly(np.full(nodes, rounds * (OVERHEAD + LATENCY)))


def test_a_barrier_ends_when_the_last_has_come():
    late = [("compute", 1.0), *blocking("barrier")]
    assert replay(trace(blocking("barrier"), late, blocking("barrier")), cluster()).finish_s.min() > 1.0


def test_a_transfer_starts_when_both_ends_are_there():
    result = replay(
        trace(blocking("send", SIZE, (1,)), [("compute", 0.5), *blocking("receive", SIZE, (0,))]), cluster()
    )
    assert result.finish_s[:, 0] == exactly(np.array([0.5 + OVERHEAD + FLOW, 0.5 + HOP]))


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
    assert wide.utilisation_in[0] == exactly(FLOW / HOP)


def test_sharing_is_max_min_fair():
    """Node 0 sends to 1, 2 and 3 and node 4 to 3; node 5 to 4, alone: 1/3, 1/3, 1/3, 2/3 and 1 of a link."""
    sizes = {(0, 1): 1, (0, 2): 1, (0, 3): 1, (4, 3): 2, (5, 4): 3}
    programs = [[] for _ in range(6)]
    for (source, target), thirds in sizes.items():
        programs[source].append(("post", "send", thirds * SIZE, (target,)))
        programs[target].append(("post", "receive", thirds * SIZE, (source,)))
    for program in programs:
        program.extend([("wait", op) for op in range(len(program))])
    assert replay(trace(*programs), cluster()).finish_s[1:5, 0] == exactly(
        np.full(4, OVERHEAD + 3 * FLOW + LATENCY)
    )


def test_half_duplex_shares_one_link_both_ways():
    both = [
        [("post", "send", SIZE, (other,)), ("post", "receive", SIZE, (other,)), ("wait", 0), ("wait", 1)]
        for other in (1, 0)
    ]
    assert replay(trace(*both), cluster()).seconds == exactly(HOP)
    assert replay(trace(*both), cluster(full_duplex=False)).seconds == exactly(HOP + FLOW)


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


def test_seconds_end_when_all_that_was_sent_is_there():
    result = replay(trace([("post", "send", SIZE, (1,))], [("post", "receive", SIZE, (0,))]), cluster())
    assert result.finish_s.max() == 0
    assert result.seconds == exactly(HOP)


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


def data_parallel(layers, compute):
    posts = [step for layer in range(layers) for step in (("compute", compute), ("post", "all_reduce", SIZE))]
    return [*posts, *[("wait", op) for op in range(layers)]]


def test_communication_overlaps_compute_and_the_rest_is_exposed():
    one = 2 * (SIZE / 2 / BANDWIDTH + LATENCY + OVERHEAD)
    hidden = replay(same(2, data_parallel(4, 2 * one)), cluster(), streams=1)
    assert hidden.seconds == exactly(8 * one + one)
    assert hidden.communication_s[:, 0] == exactly(np.full(2, one))
    exposed = replay(same(2, data_parallel(4, one / 4)), cluster(), streams=1)
    assert exposed.seconds == exactly(one / 4 + 4 * one)
    assert exposed.communication_s[:, 0] == exactly(np.full(2, 3.25 * one))
    assert exposed.idle_s.sum() == 0


def test_two_streams_fill_the_gaps_of_one_another():
    """The second collective's messages go while those of the first are under way or have their overhead."""
    work = same(2, [("post", "all_reduce", SIZE), ("post", "all_reduce", SIZE), ("wait", 0), ("wait", 1)])
    one, two = replay(work, cluster(), streams=1).seconds, replay(work, cluster(), streams=2).seconds
    assert one == exactly(4 * (FLOW / 2 + LATENCY + OVERHEAD))
    assert two == exactly(4 * (FLOW / 2 + OVERHEAD) + LATENCY)
    assert replay(work, cluster()).seconds == two


def test_a_straggler_makes_the_others_idle():
    step = blocking("all_reduce", SIZE)
    result = replay(trace(step, [("compute", 1.0), *step]), cluster())
    assert result.idle_s[:, 0] == exactly(np.array([1.0, 0.0]))
    assert result.communication_s[:, 0] == exactly(np.full(2, 2 * (FLOW / 2 + LATENCY + OVERHEAD)))


def test_repeating_the_sample_repeats_its_seconds():
    step = [("compute", 0.1), *blocking("all_reduce", SIZE)]
    once = replay(same(4, step), cluster())
    often = replay(same(4, step), cluster(), rounds=50)
    assert often.finish_s[:, -1] == exactly(50 * once.finish_s[:, -1])
    assert often.bytes_sent == exactly(50 * once.bytes_sent)
    assert (often.rounds, often.steps, often.events) == (50, 50, 50 * once.events)


@pytest.mark.parametrize("order", [("round", "step"), ("step", "round")])
def test_a_part_of_the_sample_ends_with_a_round_and_its_step(order):
    """A method marks a round inside the step that ends it, so the step is marked after it."""
    step = [("compute", 1.0), ("mark", "step")]
    end = [("compute", 1.0), ("mark", order[0]), ("mark", order[1])]
    work = same(2, [*step, *end, *step, *step, *end])
    result = replay(work, cluster(), rounds=3)
    assert (result.rounds, result.steps, result.seconds) == (3, 7, 7.0)
    assert replay(work, cluster(), rounds=1).steps == 2


def digest(result):
    arrays = (result.finish_s, result.compute_s, result.communication_s, result.idle_s, result.bytes_sent)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def random_replay(seed):
    random = np.random.default_rng(seed)
    nodes = int(random.integers(1, 7))
    work = random_trace(random, nodes, operations=12, rounds=3)
    profile = cluster(
        full_duplex=bool(seed % 3),
        bandwidth_in=float(random.choice([4, 8, 16])) * BANDWIDTH,
        latency_s=float(random.choice([0, LATENCY])),
        overhead_s=float(random.choice([0, OVERHEAD])),
    )
    return work, profile, replay(work, profile, rounds=8, window=1 + seed % 3, streams=1 + seed % 2)


def payload(work):
    """Bytes that all nodes together put on the network in one sample, by the textbook cost of each operation."""
    n, total = work.world_size, 0.0
    factor = {
        ALL_REDUCE: 2 * (n - 1) / n,
        ALL_GATHER: n - 1,
        BROADCAST: (n - 1) / n,
        SEND: 1,
        RECEIVE: 0,
        BARRIER: 0,
    }
    for events in work.nodes:
        posts = events[events["code"] == POST]
        total += sum(factor[kind] * size for kind, size in zip(posts["kind"], posts["bytes"], strict=True))
    return total


@pytest.mark.parametrize("seed", range(20))
def test_random_traces_conserve_bytes_and_time_and_beat_no_bound(seed):
    work, profile, result = random_replay(seed)
    whole = replay(work, profile, rounds=9)
    assert whole.bytes_sent.sum() == exactly(3 * payload(work))
    assert whole.bytes_received.sum() == exactly(3 * payload(work))
    assert whole.compute_s[:, -1] == exactly(np.array([3 * events["seconds"].sum() for events in work.nodes]))
    spent = result.compute_s + result.communication_s + result.idle_s
    assert spent == pytest.approx(result.finish_s, rel=1e-9)
    assert np.all(np.diff(result.finish_s, axis=1) >= 0)
    out, into = result.bytes_sent * 8 / profile.bandwidth_out, result.bytes_received * 8 / profile.bandwidth_in
    busy = np.maximum(out, into) if profile.full_duplex else out + result.bytes_received * 8 / profile.bandwidth_out
    assert result.seconds >= busy.max() * (1 - 1e-9)
    assert digest(random_replay(seed)[2]) == digest(result)


def test_the_same_figures_without_numba():
    script = (
        "import json, test_replay_by_hand as t\n"
        "print(json.dumps([t.digest(t.random_replay(s)[2]) for s in range(4)]))"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [digest(random_replay(seed)[2]) for seed in range(4)]


def test_spans_tell_where_the_time_went():
    step = [("compute", 0.2), *blocking("all_reduce", SIZE)]
    result = replay(trace(step, [("compute", 0.1), *step]), cluster(), rounds=3, spans=True)
    for kind, seconds in (
        ("compute", result.compute_s),
        ("communication", result.communication_s),
        ("idle", result.idle_s),
    ):
        spans = [span for span in result.spans if span.activity == kind]
        for node in (0, 1):
            assert sum(s.end - s.start for s in spans if s.node == node) == exactly(seconds[node, -1])
    carried = [span for span in result.spans if span.activity == "message"]
    assert len(carried) == result.messages == 12
    assert sum(span.bytes for span in carried) == exactly(result.bytes_sent.sum())
    assert all(span.end - span.start == exactly(OVERHEAD + FLOW / 2 + LATENCY) for span in carried)


def test_nodes_that_wait_in_a_circle_are_named():
    programs = [
        [("post", "receive", 1, (other,)), ("wait", 0), ("post", "send", 1, (other,)), ("mark", "step")]
        for other in (1, 0)
    ]
    with pytest.raises(UserError, match=r"node 0 waits for operation 0 \(receive from node 1\), which never ends"):
        replay(trace(*programs), cluster())


def test_a_wait_after_the_last_mark_that_never_ends_is_noticed():
    """Each node's receive comes after its send, and each send needs the other's receive."""
    programs = [
        [
            ("mark", "step"),
            ("post", "send", 1, (other,)),
            ("post", "receive", 1, (other,), 0, (0,)),
            ("wait", 0),
        ]
        for other in (1, 0)
    ]
    with pytest.raises(UserError, match=r"node 0 waits for operation 0 \(send to node 1\), which never ends"):
        replay(trace(*programs), cluster())


def test_what_cannot_be_replayed_is_said():
    work = same(2, [("compute", 1.0)])
    with pytest.raises(UserError, match="cannot replay 0 rounds; ask for 1 or more"):
        replay(work, cluster(), rounds=0)
    for wrong in ({"window": 0}, {"streams": 0}, {"compute_scale": -1.0}, {"compute_scale": float("nan")}):
        with pytest.raises(UserError, match=next(iter(wrong)).replace("_", " ")):
            replay(work, cluster(), **wrong)
    with pytest.raises(UserError, match="does not say how fast the machine was .* record it again"):
        replay(same(2, [("compute", 1.0)], gflops=None), cluster())
