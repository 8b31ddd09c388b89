"""The transport between threads of one process: each rank's transport is real, and so are its connections."""

import gc
import json
import select
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest
import torch.distributed as dist
from late_messages import make_arrivals_late
from thread_transports import transports

from istbench.fabric.signed_store import SignedStore
from istbench.fabric.transport import TransportMessage
from istbench.fabric.transport.connections import (
    ANSWER,
    CHALLENGE_BYTES,
    MOST_CALLERS,
    admit,
    connect_peers,
    introduce,
)
from istbench.fabric.transport.link import PeerConnection


class Inbox:
    """Keeps what arrives, in order."""

    def __init__(self, size):
        self.buffers = {}
        self.size = size
        self.came = []

    def buffer(self, peer, key):
        return memoryview(self.buffers.setdefault((peer, key), bytearray(self.size)))

    def arrived(self, peer, key, size):
        self.came.append((peer, key, size))
        return True


def message(channel, key, payload, order=0):
    return TransportMessage(channel, order, key, memoryview(payload))


def wait_for(transport, inbox, count):
    transport.wait(lambda: len(inbox.came) >= count, lambda: ())


def test_what_a_peer_sent_before_it_ended_arrives_however_late():
    with transports(2) as (here, there):
        make_arrivals_late(there, 0.2)
        inbox = Inbox(1)
        here.open(Inbox(1))
        there.open(inbox)
        here.send(1, [message(0, 7, b"x")])
        here.close()
        there.wait(lambda: bool(inbox.came), lambda: [0])
        assert inbox.came == [(0, 7, 1)]
        with pytest.raises(ConnectionError):
            there.wait(lambda: len(inbox.came) > 1, lambda: [0])


def test_every_message_lands_in_its_own_buffer_and_is_counted():
    with transports(3) as nodes:
        inboxes = [Inbox(5) for _ in nodes]
        numbers = [node.open(inbox) for node, inbox in zip(nodes, inboxes, strict=True)]
        assert numbers == [0, 0, 0]
        for rank, node in enumerate(nodes):
            for peer in {0, 1, 2} - {rank}:
                node.send(peer, [message(0, 7, b"%d->%d!" % (rank, peer)), message(0, 8, b"")])
        for node, inbox in zip(nodes, inboxes, strict=True):
            wait_for(node, inbox, 4)
        assert inboxes[2].buffers == {(0, 7): b"0->2!", (1, 7): b"1->2!"}
        assert sorted(inboxes[2].came) == [(0, 7, 5), (0, 8, 0), (1, 7, 5), (1, 8, 0)]
        assert [(node.traffic.sent, node.traffic.received) for node in nodes] == [(10, 10)] * 3


def wait_until_under_way(connection):
    """Wait for the first bytes of a message: it has been taken from the queue, and fills the connection."""
    assert select.select([connection], [], [], 30)[0]


def test_urgent_messages_overtake_what_the_connection_does_not_hold_yet():
    ours, theirs = socket.socketpair()
    link = PeerConnection(1, ours, lambda *_: None, lambda *_: None)
    link.limit(1)
    size = 1_000_000
    link.put([message(0, key, bytes(size), order=100 - key) for key in (1, 2, 3, 4, 5)])
    wait_until_under_way(theirs)
    link.put([message(0, 6, bytes(size), order=0)])
    keys = []
    for _ in range(6):
        head = theirs.recv(16, socket.MSG_WAITALL)
        keys.append(int.from_bytes(head[4:8], "little"))
        theirs.recv(size, socket.MSG_WAITALL)
    link.close()
    assert keys == [5, 6, 4, 3, 2, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_kernel_tells_how_far_the_peers_are():
    with transports(2) as (here, there), transports(1) as (alone,):
        assert 0 < here.round_trip_s() < 0.005
        assert 0 < there.round_trip_s() < 0.005
        assert alone.round_trip_s() == 0


def test_messages_of_equal_order_are_first_in_first_out():
    with transports(2) as (here, there):
        inbox = Inbox(1)
        here.open(Inbox(1))
        there.open(inbox)
        here.send(1, [message(0, key, b"x") for key in range(50)])
        wait_for(there, inbox, 50)
        assert [key for _, key, _ in inbox.came] == list(range(50))


def test_a_peer_that_does_not_read_stalls_only_its_own_messages():
    with transports(3) as nodes:
        inboxes = [Inbox(8_000_000) for _ in nodes]
        for node, inbox in zip(nodes, inboxes, strict=True):
            node.open(inbox, window_bytes=100_000)
        payload = bytes(8_000_000)
        with nodes[1].lock:  # rank 1 cannot take delivery of anything
            nodes[0].send(1, [message(0, key, payload) for key in range(4)])
            nodes[0].send(2, [message(0, key, payload) for key in range(4)])
            wait_for(nodes[2], inboxes[2], 4)
            assert not inboxes[1].came
        wait_for(nodes[1], inboxes[1], 4)


def test_a_channel_that_the_receiver_opens_later_waits_and_one_that_is_gone_is_dropped():
    with transports(2) as (here, there):
        first, second = Inbox(3), Inbox(3)
        here.open(first)
        here.open(second)
        gone = Inbox(3)
        there.open(gone)
        del gone
        gc.collect()
        here.send(1, [message(0, 1, b"one"), message(1, 2, b"two")])
        time.sleep(0.05)
        late = Inbox(3)
        there.open(late)
        wait_for(there, late, 1)
        assert late.came == [(0, 2, 3)]
        assert late.buffers == {(0, 2): b"two"}


def test_messages_of_an_older_channel_go_first():
    ours, theirs = socket.socketpair()
    link = PeerConnection(1, ours, lambda *_: None, lambda *_: None)
    link.limit(1)
    link.put([message(0, 1, bytes(1_000_000))])
    wait_until_under_way(theirs)
    link.put([message(1, 2, b"", order=0), message(0, 3, b"", order=9)])
    theirs.recv(16 + 1_000_000, socket.MSG_WAITALL)
    heads = [theirs.recv(16, socket.MSG_WAITALL) for _ in range(2)]
    link.close()
    assert [(head[0], head[4]) for head in heads] == [(0, 3), (1, 2)]


def test_waiting_for_a_peer_that_is_gone_names_it():
    with transports(3) as nodes:
        for node in nodes:
            node.open(Inbox(1))
        nodes[2].close()
        with pytest.raises(ConnectionError, match="rank 2: the peer closed the connection"):
            nodes[0].wait(lambda: False, lambda: {2})
        nodes[0].timeout_s = 0.05
        with pytest.raises(TimeoutError):
            nodes[0].wait(lambda: False, lambda: {1})


def test_a_peer_that_has_the_last_message_may_leave_before_the_sender_notes_that_it_left():
    heard = []
    here, there = socket.socketpair()
    link = PeerConnection(1, here, lambda *_: None, lambda _peer, error: heard.append(str(error)))

    def left():
        time.sleep(0.2)  # the sending thread has no core
        heard.append("left")

    link.put([TransportMessage(0, 0, 7, memoryview(b"x"), left)])
    there.recv(17, socket.MSG_WAITALL)
    there.close()
    while len(heard) < 2:
        time.sleep(0.01)
    link.close()
    assert heard[:2] == ["left", "the peer closed the connection"]


def test_a_payload_of_another_size_is_refused():
    with transports(2) as (here, there):
        inbox = Inbox(2)
        here.open(Inbox(1))
        there.open(inbox)
        here.send(1, [message(0, 1, b"long")])
        with pytest.raises(ConnectionError, match="rank 0: it sent 4 bytes in place of 2"):
            there.wait(lambda: False, lambda: {0})


def test_tasks_run_most_urgent_first_and_what_they_raise_is_raised_by_waiting():
    with transports(1) as (node,):
        begun, go, ran = threading.Event(), threading.Event(), []

        def hold():
            begun.set()
            go.wait()

        def fail():
            raise ZeroDivisionError("of no use")

        node.work([(0, hold)])
        begun.wait()
        node.work([(3, fail), (2, lambda: ran.append(2)), (1, lambda: ran.append(1))])
        go.set()
        with pytest.raises(ZeroDivisionError, match="of no use"):
            node.wait(lambda: False, lambda: ())
        assert ran == [1, 2]


def test_threads_end_with_the_transport():
    before = set(threading.enumerate())  # of which one of another test may be about to end
    with transports(3):
        assert len(set(threading.enumerate()) - before) == 3 * 5
    assert set(threading.enumerate()) <= before


def test_a_caller_without_the_key_is_turned_away():
    store = SignedStore(dist.HashStore(), b"a key of these ranks")
    with ThreadPoolExecutor(2) as pool:
        listening = pool.submit(connect_peers, store, 0, 2, 60.0)
        place = json.loads(store.wait("transport/0", timedelta(seconds=60)))
        with socket.create_connection((place["address"], place["port"])) as stranger:
            assert len(stranger.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)) == CHALLENGE_BYTES
            stranger.sendall(b"x" * 36)
            assert stranger.recv(1) == b""
        (there,) = connect_peers(store, 1, 2, 60.0).values()
        (here,) = listening.result().values()
        here.sendall(b"hello")
        assert there.recv(5, socket.MSG_WAITALL) == b"hello"
        here.close()
        there.close()


def test_strangers_that_say_nothing_or_something_else_do_not_hold_up_a_peer_and_are_dropped():
    store = SignedStore(dist.HashStore(), b"a key of these ranks")
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        listening = pool.submit(connect_peers, store, 0, 2, 60.0)
        place = json.loads(store.wait("transport/0", timedelta(seconds=60)))
        address = (place["address"], place["port"])
        strangers = [stack.enter_context(socket.create_connection(address)) for _ in range(MOST_CALLERS + 6)]
        for number, stranger in enumerate(strangers[-6:]):
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100 * (number % 2))
        # Much less than one of them has to say who it is, for each.
        (there,) = pool.submit(connect_peers, store, 1, 2, 60.0).result(timeout=30).values()
        (here,) = listening.result(timeout=30).values()
        for stranger in strangers:
            stranger.settimeout(30)
            with suppress(ConnectionResetError):  # what it said was not all read
                stranger.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
                assert stranger.recv(1) == b""
        there.sendall(b"hello")
        assert here.recv(5, socket.MSG_WAITALL) == b"hello"
        here.close()
        there.close()


def test_a_caller_who_repeats_the_answer_of_a_peer_is_turned_away():
    class Overheard:
        """A connection of a peer, and all that it sends."""

        def __init__(self, connection):
            self._connection, self.sent = connection, b""
            self.recv = connection.recv

        def sendall(self, content):
            self.sent += content
            self._connection.sendall(content)

    key = b"a key of these ranks"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as peer,
        socket.create_connection(listener.getsockname()) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        accepted = pool.submit(admit, listener, key, {1, 2}, 60.0)
        overheard = Overheard(peer)
        introduce(overheard, key, 1)
        # As the same peer, or as the one that has not called yet.
        for hello in (overheard.sent, ANSWER.pack(ANSWER.unpack(overheard.sent)[0], 2)):
            with socket.create_connection(listener.getsockname()) as stranger:
                stranger.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
                stranger.sendall(hello)
                assert stranger.recv(1) == b""
        introduce(other, key, 2)
        for connection in accepted.result(timeout=60).values():
            connection.close()


def test_more_peers_than_strangers_may_wait_for_their_first_answer():
    key, ranks = b"a key of these ranks", range(1, MOST_CALLERS + 7)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=len(ranks)) as listener,
        ThreadPoolExecutor(1) as pool,
        ExitStack() as stack,
    ):
        accepted = pool.submit(admit, listener, key, set(ranks), 60.0)
        peers = [stack.enter_context(socket.create_connection(listener.getsockname(), 30)) for _ in ranks]
        for peer in peers:  # all have a challenge before one answers
            assert peer.recv(1, socket.MSG_PEEK)
        for rank, peer in zip(ranks, peers, strict=True):
            introduce(peer, key, rank)
        found = accepted.result(timeout=60)
        assert found.keys() == set(ranks)
        for connection in found.values():
            connection.close()


def test_a_peer_that_never_calls_is_not_awaited_for_ever():
    store = SignedStore(dist.HashStore(), b"a key of these ranks")
    with pytest.raises(TimeoutError, match="timed out"):
        connect_peers(store, 0, 2, 0.1)
