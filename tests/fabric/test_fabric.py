"""The fabric on real gloo processes: values, byte counts, and time-outs that name who is missing."""

import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from late_messages import make_late
from torch.distributed.distributed_c10d import _set_pg_timeout

from istbench.base.errors import RunFailed
from istbench.cluster.trace import AFTER, MARK, POST, WAIT
from istbench.fabric import Traffic
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes

pytestmark = pytest.mark.processes


def node_all(fabric):
    """What each of these saw, by name, with counts and a record of its own."""
    seen = {}
    for what in (
        collectives,
        pending_collectives,
        exchange,
        recorded_exchange,
        exchange_beside_computing,
        accounting,
    ):
        fabric.traffic.update({purpose: Traffic() for purpose in fabric.traffic})
        fabric.recorder = Recorder(fabric.device)
        seen[what.__name__] = what(fabric)
    return seen


@pytest.fixture(scope="module")
def seen():
    """By name, what each of three nodes saw."""
    nodes = on_nodes(node_all, 3)
    return {name: [node[name] for node in nodes] for name in nodes[0]}


def collectives(fabric):
    mine = torch.full((6,), float(fabric.rank))
    fabric.all_reduce_mean(mine)
    later = fabric.all_reduce_mean_async(torch.full((3,), float(fabric.rank)), "later").wait()
    return [mine.tolist(), later.tolist(), fabric.maximum(fabric.rank), fabric.total(1)]


def test_collectives_agree_on_every_node(seen):
    for result in seen["collectives"]:
        assert result == [[1.0] * 6, [1.0] * 3, 2.0, 3.0]


def pending_collectives(fabric):
    """What is there once it was waited for, twice, and the bytes of each on this node."""
    rank, n = fabric.rank, fabric.world_size
    gathered, mine, sent = torch.zeros(2 * n), torch.zeros(2), torch.full((5,), float(rank))
    own = gathered[2 * rank : 2 * rank + 2].fill_(rank)
    counted, found = [], []
    for start in (
        lambda: fabric.all_gather_async(gathered, own, "gathering"),
        lambda: fabric.reduce_scatter_mean_async(mine, torch.arange(2.0 * n) * (rank + 1), "averaging"),
        lambda: fabric.broadcast_async(sent, 1, "handing out"),
    ):
        pending = start()
        found += [pending.wait(), pending.wait()]
        traffic = fabric.traffic["training"]
        counted.append([traffic.sent, traffic.received])
        traffic.sent = traffic.received = 0
    return [gathered.tolist(), mine.tolist(), sent.tolist(), found, counted]


def test_collectives_under_way_are_there_once_they_were_waited_for(seen):
    for rank, (gathered, mine, sent, found, counted) in enumerate(seen["pending_collectives"]):
        assert gathered == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
        assert mine == [2.0 * value for value in (2 * rank, 2 * rank + 1)]
        assert sent == [1.0] * 5
        assert found == [True] * 6
        assert counted == [[16, 16], [16, 16], [40, 0] if rank == 1 else [0, 20]]


def node_against_gloo(fabric):
    """Whether the fabric's collectives give what gloo's give, for some sizes, and sums those in rank order.

    Nodes start at other times each time, so that messages come in other orders.
    """
    rank, n = fabric.rank, fabric.world_size
    random, same = torch.Generator().manual_seed(rank), []
    for number, size in enumerate((0, 1, 5, 1000, 100_003)):
        mine, for_rank = (
            torch.randn(count, generator=random) * 10 ** torch.randint(-6, 7, (count,), generator=random)
            for count in (size, n * size)
        )
        wanted, sent_here = mine.new_empty(n * size), for_rank.new_empty(n, size)
        dist.all_gather_into_tensor(wanted, mine)
        dist.all_to_all_single(sent_here.view(-1), for_rank)
        time.sleep(0.02 * ((rank + number) % n))
        gathered, summed = mine.new_zeros(n * size), mine.new_zeros(size)
        own = gathered[rank * size : (rank + 1) * size].copy_(mine)
        again = torch.zeros_like(gathered)
        under_way = [
            fabric.all_gather_async(gathered, own, "gathering"),
            fabric.reduce_scatter_mean_async(summed, for_rank, "averaging"),
            fabric.all_gather_async(again, mine, "gathering again"),
        ]
        for pending in reversed(under_way):
            pending.wait()
        arrived = {peer: mine.new_empty(size) for peer in range(n) if peer != rank}
        leaving = {peer: part.clone() for peer, part in enumerate(for_rank.view(n, size)) if peer != rank}
        fabric.exchange_async(leaving, arrived).wait()
        total = sent_here[0].clone()
        for term in sent_here[1:]:
            total += term
        found = [gathered, again, summed, *arrived.values()]
        expected = [wanted, wanted, total / n, *(sent_here[peer] for peer in arrived)]
        same.append(all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)))
    return [same, fabric.uses_transport]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_collectives_give_what_gloos_give_and_add_up_in_rank_order(nodes):
    assert on_nodes(node_against_gloo, nodes) == [[[True] * 5, nodes > 1]] * nodes


def node_averaging_later(fabric):
    """What of the tensor is computed when the recorder is told of the all-reduce: replays send it from then on."""
    posted = []
    fabric.recorder.post = lambda kind, *_: posted.append((kind, tensor.tolist()))
    tensor = torch.full((2,), 4.0)
    fabric.all_reduce_mean_async(tensor, "later").wait()
    return posted


def test_a_nodes_share_of_the_mean_is_computed_before_its_sending_is_recorded():
    assert on_nodes(node_averaging_later, 2)[0] == [["all_reduce", [2.0, 2.0]]]


def exchange(fabric):
    """Sends rank r's peer p as many values as p + 1, so that sizes differ, and nothing to rank 0."""
    peers = [peer for peer in range(fabric.world_size) if peer != fabric.rank]
    sends = {peer: torch.full((peer,), float(fabric.rank)) for peer in peers}
    receives = {peer: torch.empty(fabric.rank) for peer in peers}
    fabric.exchange(sends, receives)
    traffic = fabric.traffic["training"]
    return [{str(peer): buffer.tolist() for peer, buffer in receives.items()}, traffic.sent, traffic.received]


def test_exchange_delivers_every_buffer_and_counts_its_bytes(seen):
    for rank, (received, sent_bytes, received_bytes) in enumerate(seen["exchange"]):
        assert received == {str(peer): [float(peer)] * rank for peer in range(3) if peer != rank}
        assert sent_bytes == 4 * sum(peer for peer in range(3) if peer != rank)
        assert received_bytes == 4 * 2 * rank


def recorded_exchange(fabric):
    for mark in ("round", "step"):  # recording starts after the first round
        fabric.recorder.mark(mark)
    others = [peer for peer in range(fabric.world_size) if peer != fabric.rank]
    fabric.exchange({peer: torch.ones(2) for peer in others}, {peer: torch.empty(2) for peer in others})
    for mark in ("round", "step"):
        fabric.recorder.mark(mark)
    events = fabric.recorder.events()
    return [[int(event["code"]), int(event["peer"])] for event in events if event["code"] in (POST, AFTER, WAIT)]


def test_an_exchange_takes_turns_in_which_no_two_messages_share_a_link(seen):
    for rank, events in enumerate(seen["recorded_exchange"]):
        before, after = (rank - 1) % 3, (rank + 1) % 3
        turn_before = [[AFTER, -1]] * 2
        first = [[POST, before], [POST, after]]
        second = [*turn_before, [POST, after], *turn_before, [POST, before]]
        assert events == first + second + [[WAIT, -1]] * 4


def exchange_beside_computing(fabric):
    """What arrived, what was counted, and the recorded events of two exchanges of which one is finished early."""
    for mark in ("round", "step"):  # recording starts after the first round
        fabric.recorder.mark(mark)
    make_late(fabric, 0.01)
    peers = [peer for peer in range(fabric.world_size) if peer != fabric.rank]
    received = {peer: torch.empty(fabric.rank) for peer in peers}  # none at rank 0
    under_way = fabric.exchange_async({p: torch.full((p,), float(fabric.rank)) for p in peers}, received)
    under_way.finish()
    arrived = {str(peer): buffer.tolist() for peer, buffer in received.items()}
    fabric.recorder.mark("step")
    under_way.wait()
    under_way.wait()
    fabric.exchange_async({}, {}).wait()
    for mark in ("round", "step"):
        fabric.recorder.mark(mark)
    events = [int(event["code"]) for event in fabric.recorder.events() if event["code"] in (POST, WAIT, MARK)]
    make_late(fabric, 0.0)
    traffic = fabric.traffic["training"]
    return [arrived, [traffic.sent, traffic.received], events]


def test_an_exchange_beside_computing_is_waited_for_where_it_is_needed(seen):
    for rank, (arrived, counted, events) in enumerate(seen["exchange_beside_computing"]):
        assert arrived == {str(peer): [float(peer)] * rank for peer in range(3) if peer != rank}
        sent, received = [peer for peer in range(3) if peer not in (rank, 0)], [rank] * 2 * bool(rank)
        assert counted == [4 * sum(sent), 4 * sum(received)]
        operations = len(sent) + len(received)
        assert events == [POST] * operations + [MARK] + [WAIT] * operations + [MARK] * 2


def accounting(fabric):
    with fabric.accounting("assemble"):
        gathered = [
            [rank, values.tolist()]
            for rank, values in fabric.gather_to_zero(torch.arange(2.0) + fabric.rank, [2, 2, 2])
        ]
    fabric.all_reduce_sum(torch.ones(300))
    return [gathered, *([t.sent, t.received] for t in fabric.traffic.values())]


def test_traffic_is_counted_by_purpose(seen):
    results = seen["accounting"]
    assert results[0][0] == [[0, [0.0, 1.0]], [1, [1.0, 2.0]], [2, [2.0, 3.0]]]
    ring = 2 * 300 * 4 * 2 // 3
    assert [result[1] for result in results] == [[ring, ring]] * 3
    assert [result[2] for result in results] == [[0, 16], [8, 0], [8, 0]]


def node_late(fabric):
    fabric.barrier()  # by then they have met, for which a busy machine may take long
    fabric.timeout_s = 2.0
    _set_pg_timeout(timedelta(seconds=2))
    if fabric.rank == 1:
        time.sleep(30)
    else:
        fabric.all_reduce_mean(torch.ones(4), "averaging models")


def test_a_time_out_names_the_operation_and_the_missing_rank():
    with pytest.raises(RunFailed, match=r"averaging models .*gave up after 2 s: rank 1 did not join, but is alive"):
        on_nodes(node_late, 3)


def node_late_to_gather(fabric):
    """Rank 1 joins the first all-gather only."""
    fabric.barrier()
    fabric.timeout_s = 2.0
    for number in range(2):
        if fabric.rank == 1 and number:
            time.sleep(30)
        pending = fabric.all_gather_async(torch.empty(12), torch.ones(4), "gathering a layer")
        if fabric.rank != 1 or not number:
            pending.wait()


def test_a_time_out_of_an_exchange_names_the_operation_and_the_missing_rank():
    with pytest.raises(RunFailed, match=r"gathering a layer .*gave up after 2 s: rank 1 did not join"):
        on_nodes(node_late_to_gather, 3)


def node_gone_while_gathering(fabric):
    for number in range(2):
        if fabric.rank == 2 and number:
            os.kill(os.getpid(), signal.SIGKILL)
        fabric.all_gather_async(torch.empty(12), torch.ones(4), "gathering a layer").wait()


def test_a_worker_that_is_killed_while_others_gather_is_named():
    with pytest.raises(RunFailed, match=r"worker 2 was killed by SIGKILL"):
        on_nodes(node_gone_while_gathering, 3)


def node_dies(fabric):
    if fabric.rank == 1:
        print("about to go", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    fabric.all_reduce_mean(torch.ones(4))


def test_a_killed_worker_is_named_with_its_last_lines():
    with pytest.raises(RunFailed, match=r"worker 1 was killed by SIGKILL(?s:.)*about to go"):
        on_nodes(node_dies, 3)


def node_raises(fabric):
    if fabric.rank == 2:
        raise ValueError("no such unit")
    fabric.all_reduce_mean(torch.ones(4))


def test_a_worker_that_raises_is_named_and_not_those_that_lost_it():
    with pytest.raises(RunFailed, match=r"worker 2 failed: ValueError: no such unit"):
        on_nodes(node_raises, 3)
