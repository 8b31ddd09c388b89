"""Exchanges over the transport, between threads of one process."""

import threading
import time

import torch
from thread_transports import transports

from istbench.fabric.exchanges import Exchanges
from istbench.fabric.transport import TransportMessage

SIZE = 8_000_000  # more than a connection holds


def wait(transport, exchanges, number):
    transport.wait(lambda: not exchanges.missing(number), lambda: exchanges.missing(number))


def missing(transport, exchanges):
    with transport.lock:
        return exchanges.missing(0)


def test_what_comes_before_its_exchange_has_begun_waits_for_it():
    with transports(2) as nodes:
        early, late = (Exchanges(node) for node in nodes)
        for value in (1.0, 2.0):
            early.begin([({1: torch.full((3,), value)}, {})])
        received = [torch.zeros(3), torch.zeros(3)]
        numbers = [late.begin([({}, {0: buffer})]) for buffer in received]
        for number in reversed(numbers):
            wait(nodes[1], late, number)
        assert [buffer.tolist() for buffer in received] == [[1.0] * 3, [2.0] * 3]
        assert nodes[1].traffic.received == 0  # the fabric counts exchanges


def test_every_peers_message_of_an_exchange_is_awaited_and_only_those():
    with transports(3) as nodes:
        ends = [Exchanges(node) for node in nodes]
        buffers = [{peer: torch.zeros(2) for peer in range(3) if peer != rank} for rank in range(3)]
        for rank, end in enumerate(ends):
            peers = buffers[rank].keys()
            assert end.begin([({peer: torch.full((2,), 10.0 * rank + peer) for peer in peers}, buffers[rank])]) == 0
        for rank, (node, end) in enumerate(zip(nodes, ends, strict=True)):
            wait(node, end, 0)
            assert {peer: buffer.tolist() for peer, buffer in buffers[rank].items()} == {
                peer: [10.0 * peer + rank] * 2 for peer in range(3) if peer != rank
            }


def test_a_turn_begins_after_the_messages_of_the_turn_before():
    with transports(3) as nodes:
        ends = [Exchanges(node) for node in nodes]
        received = {1: torch.zeros(1), 2: torch.zeros(1)}
        late = torch.zeros(1)
        ends[0].begin([({1: torch.ones(1)}, {2: received[2]}), ({2: torch.full((1,), 7.0)}, {1: received[1]})])
        ends[1].begin([({}, {0: torch.zeros(1)}), ({0: torch.full((1,), 5.0)}, {})])
        wait(nodes[1], ends[1], 0)
        deadline = time.monotonic() + 10.0
        while 1 in missing(nodes[0], ends[0]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert received[1] == 5.0  # a message of a later turn may come first
        assert missing(nodes[0], ends[0]) == {2}  # its message, and the one to it, which waits for it
        ends[2].begin([({0: torch.full((1,), 3.0)}, {}), ({}, {0: late})])
        for node, end in zip(nodes, ends, strict=True):
            wait(node, end, 0)
        assert [float(received[2]), float(late)] == [3.0, 7.0]


def test_an_exchange_is_complete_once_its_messages_have_left():
    with transports(2) as nodes:
        ends = [Exchanges(node) for node in nodes]
        large = torch.ones(20_000_000)  # more than the kernel keeps for a receiver that does not read
        ends[0].begin([({1: large}, {})])
        time.sleep(0.2)
        assert missing(nodes[0], ends[0]) == {1}
        ends[1].begin([({}, {0: torch.empty_like(large)})])
        for node, end in zip(nodes, ends, strict=True):
            wait(node, end, 0)


class Inbox:
    """Keeps the keys of what arrives, in order."""

    def __init__(self):
        self.came = []

    def buffer(self, peer, key):
        return memoryview(bytearray(SIZE))

    def arrived(self, peer, key, size):
        self.came.append(key)
        return True


def test_an_exchange_overtakes_no_message_that_its_peer_needs_before_it_begins_the_exchange():
    with transports(2) as nodes:
        ends = [Exchanges(node) for node in nodes]
        inbox, unused = Inbox(), Inbox()
        (channel,) = {nodes[0].open(unused), nodes[1].open(inbox)}
        received = torch.zeros(1)
        with nodes[1].lock:  # nothing is delivered, so the second message waits in the queue
            for key in (1, 2):
                nodes[0].send(1, [TransportMessage(channel, key, key, memoryview(bytes(SIZE)))])
            ends[0].begin([({1: torch.ones(1)}, {})])
            nodes[0].send(1, [TransportMessage(channel, 3, 3, memoryview(bytes(SIZE)))])
        nodes[1].timeout_s = 5.0
        nodes[1].wait(lambda: {1, 2} <= set(inbox.came), lambda: {0})
        wait(nodes[1], ends[1], ends[1].begin([({}, {0: received})]))
        nodes[1].wait(lambda: 3 in inbox.came, lambda: {0})
        assert received == 1.0


def test_a_node_that_leaves_does_not_wait_for_an_exchange_that_it_never_begins():
    before = set(threading.enumerate())
    with transports(2) as nodes:
        early, late = (Exchanges(node) for node in nodes)
        early.begin([({1: torch.ones(1)}, {})])
        nodes[0].close()  # once it is sent
        nodes[1].close()
        assert set(threading.enumerate()) <= before  # it leaves a thread that stays
        assert late.missing(0) == set()
