"""All-reduces by exchanges in turns. Functions named `node_*` run on every node."""

import functools
import os
import signal
import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from istbench.base.errors import RunFailed
from istbench.cluster import in_turns
from istbench.cluster.trace import COMPUTE, POST
from istbench.fabric import Traffic
from istbench.fabric.all_reduce import finish, mean_in_turns
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes
from istbench.plan.step import LiveBytes

pytestmark = pytest.mark.processes

SIZES = (0, 1, 2, 3, 5, 1000, 30_000, 100_003)
LEAST_MESSAGE = 40_000
"""So small that the largest tensors have several slices."""


def term(rank, size):
    """What node `rank` brings: values of very different sizes, whose sum depends on its order."""
    random = torch.Generator().manual_seed(100 * size + rank)
    return torch.randn(size, generator=random) * 10.0 ** torch.randint(-6, 7, (size,), generator=random)


def mean_in_rank_order(nodes, size):
    total = term(0, size)
    for rank in range(1, nodes):
        total += term(rank, size)
    return total / nodes


def node_averages(fabric):
    """By size: whether the mean is that in rank order, twice, and the bytes sent and received here for one."""
    in_turns.LEAST_MESSAGE = LEAST_MESSAGE
    fabric.far = True
    n, found = fabric.world_size, []
    for number, size in enumerate(SIZES):
        wanted = mean_in_rank_order(n, size)
        time.sleep(0.02 * ((fabric.rank + number) % n))  # messages come in other orders
        fabric.traffic["training"] = Traffic()
        values = [term(fabric.rank, size) for _ in range(2)]
        fabric.all_reduce_mean(values[0], "averaging")
        counted = fabric.traffic["training"]
        found.append([counted.sent, counted.received])
        fabric.all_reduce_mean(values[1], "averaging")
        found[-1] += [torch.equal(value, wanted) for value in values]
    return found


def node_all(fabric):
    """What each part for so many nodes found, by its name."""
    parts, found = [node_averages], {}
    if fabric.world_size in (2, 3):
        parts += [node_memory]
    if fabric.world_size == 3:
        parts += [node_strided, node_recorded, node_recorded_far]
    for part in parts:
        fabric.far, fabric.recorder = False, Recorder(fabric.device)
        found[part.__name__] = part(fabric)
    return found


found_by_nodes = functools.cache(functools.partial(on_nodes, node_all))


def found_by(part, nodes=3):
    """What each node found in a part."""
    return [found[part.__name__] for found in found_by_nodes(nodes)]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_the_mean_is_that_in_rank_order_on_all_nodes_bit_for_bit(nodes):
    for found in found_by(node_averages, nodes):
        for size, (sent, received, *same) in zip(SIZES, found, strict=True):
            assert same == [True, True], size
            padded = 4 * (size + -size % nodes)
            whole, shared = 4 * size * (nodes - 1), 2 * padded * (nodes - 1) // nodes
            assert sent == received == (whole if whole <= shared + 2**16 else shared)


def mean_by_hosts(nodes, host_nodes, size):
    totals = []
    for first in range(0, nodes, host_nodes):
        totals.append(term(first, size))
        for rank in range(first + 1, first + host_nodes):
            totals[-1] += term(rank, size)
    for total in totals[1:]:
        totals[0] += total
    return totals[0] / nodes


def node_on_hosts(fabric, host_nodes):
    """By size: whether the mean is that by hosts or in rank order, and the bytes to nodes of other hosts."""
    in_turns.LEAST_MESSAGE = LEAST_MESSAGE
    fabric.far = True
    fabric.host_nodes = host_nodes
    n, found, sent = fabric.world_size, [], Counter()
    start = fabric.exchange_async

    def counted(sends, receives, name):
        sent["all"] += sum(buffer.nbytes for buffer in sends.values())
        own = fabric.rank // host_nodes
        sent["far"] += sum(buffer.nbytes for rank, buffer in sends.items() if rank // host_nodes != own)
        return start(sends, receives, name)

    fabric.exchange_async = counted
    for size in (1000, 100_003, 300_001):
        sent.clear()
        value = term(fabric.rank, size)
        fabric.all_reduce_mean(value, "averaging")
        wanted = mean_in_rank_order(n, size), mean_by_hosts(n, host_nodes, size)
        found.append([[torch.equal(value, mean) for mean in wanted], sent["far"], sent["all"]])
    return found


@pytest.mark.parametrize(("nodes", "host_nodes"), [(4, 2), (6, 2), (6, 3)])
def test_on_hosts_of_several_nodes_each_link_carries_the_bytes_of_a_host_once(nodes, host_nodes):
    hosts = nodes // host_nodes
    for (small, *_), *large in on_nodes(node_on_hosts, nodes, host_nodes):
        assert small[0]
        for (same, far, sent), size in zip(large, (100_003, 300_001), strict=True):
            assert same[1]
            padded = 4 * (size + -size % nodes)
            part = padded // host_nodes
            between = 2 * part * (hosts - 1) // hosts
            assert between <= far <= between + 2**16 * 8
            assert sent - far == 2 * padded * (host_nodes - 1) // host_nodes


def node_strided(fabric):
    """Whether means come back to a tensor with gaps, to others of its storage not, and in other dtypes."""
    in_turns.LEAST_MESSAGE = LEAST_MESSAGE
    fabric.far = True
    n, same = fabric.world_size, []
    for size in (7, 50_001):
        storage = torch.stack([term(fabric.rank, size), torch.full((size,), 3.0)], 1)
        fabric.all_reduce_mean(storage[:, 0])
        same += [torch.equal(storage[:, 0], mean_in_rank_order(n, size)), bool((storage[:, 1] == 3.0).all())]
        square = torch.full((size, 3), float(fabric.rank), dtype=torch.bfloat16).t()
        fabric.all_reduce_mean(square)
        same.append(torch.equal(square, torch.full_like(square, (n - 1) / 2)))
    return same


def test_a_tensor_may_have_gaps_and_any_floating_point_type():
    assert found_by(node_strided) == [[True] * 6] * 3


def node_by_distance(fabric):
    """For near nodes, twice, and for distant ones.

    Whether the mean is gloo's, whether it is that in rank order, its bytes, and whether the transport carried them.
    """
    rank, n, size = fabric.rank, fabric.world_size, 30_000
    own = fabric.transport.round_trip_s()
    gloos = term(rank, size)
    dist.all_reduce(gloos)
    found = []
    for farthest_s, dilation in ((own, 1.0), (0.008, 2.0), (0.012, 2.0)):
        fabric.transport.round_trip_s = lambda farthest_s=farthest_s: farthest_s if rank == 1 else 0.0
        fabric.look_at_distance(dilation)
        fabric.traffic["training"] = Traffic()
        value = term(rank, size)
        fabric.all_reduce_mean(value)
        same = [torch.equal(value, wanted) for wanted in (gloos / n, mean_in_rank_order(n, size))]
        found.append([*same, fabric.traffic["training"].sent, fabric.uses_transport])
    return found


def test_near_nodes_keep_gloos_mean_and_distant_ones_take_turns():
    sent = 2 * 4 * 30_000 * 2 // 3
    assert on_nodes(node_by_distance, 3) == [[[True, False, sent, False]] * 2 + [[False, True, sent, True]]] * 3


def node_recorded(fabric):
    """The kinds and bytes of the recorded operations of a small all-reduce and of a large one."""
    in_turns.LEAST_MESSAGE = LEAST_MESSAGE
    _ = fabric.transport
    kinds = []
    for size in (10, 60_000):
        events = recorded(fabric, exchanges_of_mean, torch.ones(size))
        kinds.append([[int(event["kind"]), int(event["bytes"])] for event in events if event["code"] == POST])
    return kinds


def exchanges_of_mean(fabric, tensor):
    """The exchanges, which the fabric leaves out of a trace."""
    finish(mean_in_turns(fabric, tensor, "averaging"))


def recorded(fabric, function, *given):
    """The events of `function` on the fabric."""
    fabric.recorder = Recorder(fabric.device)
    for mark in ("round", "step"):  # recording starts after the first round
        fabric.recorder.mark(mark)
    function(fabric, *given)
    for mark in ("round", "step"):
        fabric.recorder.mark(mark)
    return fabric.recorder.events()


def test_its_exchanges_are_recorded_as_those_that_replays_know():
    for small, large in found_by(node_recorded):
        assert sorted(small) == [[1, 40]] * 2 + [[2, 40]] * 2  # sends and receives
        assert large == [[7, 120_000]] * 2 + [[3, 40_000]] * 2  # reduce-scatters and all-gathers


def three_means(fabric):
    """A mean at once, one later, and two that take their steps together."""
    fabric.all_reduce_mean(torch.ones(60_000))
    later = fabric.start_mean(torch.ones(10), "later")
    fabric.recorder.mark("step")
    later.wait()
    if fabric.far:
        fabric.finish_means(*[fabric.mean_in_turns(torch.ones(size), "bucket") for size in (60_000, 20)])
    else:
        for size in (60_000, 20):
            fabric.all_reduce_mean_async(torch.ones(size), "bucket").wait()
        fabric.recorder.wait_all()


def node_recorded_far(fabric):
    """What the trace has of means of near and of distant nodes, and the seconds that the distant ones waited."""
    in_turns.LEAST_MESSAGE = LEAST_MESSAGE
    _ = fabric.transport
    found = []
    for fabric.far in (False, True):
        events = recorded(fabric, three_means)
        rest = events[events["code"] != COMPUTE]
        found.append([rest[name].tolist() for name in ("code", "kind", "op", "bytes")])
    return found, fabric.recorder.waits.seconds()


def test_the_trace_of_distant_nodes_has_their_means_as_that_of_near_ones_has():
    for (near, far), waited_s in found_by(node_recorded_far):
        assert far == near
        assert waited_s > 0


def node_memory(fabric):
    """By size, the most bytes of tensors at one time beside the averaged one."""
    in_turns.LEAST_MESSAGE = LEAST_MESSAGE
    fabric.far = True
    peaks = []
    for size in (1000, 300_000):
        values = torch.ones(size)
        with LiveBytes([values]) as live:
            fabric.all_reduce_mean(values)
        peaks.append(live.peak)
    return peaks


@pytest.mark.parametrize("nodes", [2, 3])
def test_its_buffers_are_those_of_a_plan(nodes, monkeypatch):
    monkeypatch.setattr(in_turns, "LEAST_MESSAGE", LEAST_MESSAGE)
    for peaks in found_by(node_memory, nodes):
        for peak, size in zip(peaks, (1000, 300_000), strict=True):
            assert peak == pytest.approx(in_turns.buffer_bytes(4 * size, nodes), rel=0.15)


def node_late(fabric, size):
    """Rank 1 joins the first all-reduce only."""
    fabric.barrier()
    fabric.far = True
    fabric.transport.timeout_s = fabric.timeout_s = 2.0
    for number in range(2):
        if fabric.rank == 1 and number:
            time.sleep(30)
        fabric.all_reduce_mean(torch.ones(size), "averaging models")


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_time_out_names_the_operation_and_the_missing_rank(size):
    with pytest.raises(RunFailed, match=r"averaging models.* gave up after 2 s: rank 1 did not join, but is alive"):
        on_nodes(node_late, 3, size)


def node_gone(fabric, size):
    fabric.far = True
    for number in range(2):
        if fabric.rank == 2 and number:
            os.kill(os.getpid(), signal.SIGKILL)
        fabric.all_reduce_mean(torch.ones(size), "averaging models")


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_worker_that_is_killed_is_named(size):
    with pytest.raises(RunFailed, match=r"worker 2 was killed by SIGKILL"):
        on_nodes(node_gone, 3, size)
