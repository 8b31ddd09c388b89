"""The connection to one peer, with a thread that sends the most urgent message and one that receives."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from istbench.fabric.transport.urgent_first import UrgentFirst

_HEADER = struct.Struct("<IIQ")
_SHUTDOWN_S = 5.0
_LARGEST_BUFFER = 2**30


class Message(NamedTuple):
    """What is sent. `payload` must stay as it is until the receiver has it; of a channel, lower `order` is more
    urgent."""

    channel: int
    order: int
    key: int
    payload: memoryview


class Link:
    """Messages to and from one peer.

    `deliver(peer, channel, key, size, fill)` is called on the receiving thread for every message; it must call
    `fill` once with a buffer of `size` bytes. `lost(peer, error)` is called when either thread ends by an error, as
    it does when the peer leaves.
    """

    def __init__(
        self,
        peer: int,
        connection: socket.socket,
        deliver: Callable[[int, int, int, int, Callable[[memoryview], None]], None],
        lost: Callable[[int, Exception], None],
    ) -> None:
        self.peer = peer
        self._socket = connection
        self._deliver = deliver
        self._lost = lost
        self._queue: UrgentFirst[Message] = UrgentFirst()
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name=f"{what} {peer}", daemon=True)
            for what, step in (("send to", self._send_one), ("receive from", self._receive_one))
        ]
        for thread in self._threads:
            thread.start()

    def limit(self, window_bytes: int) -> None:
        """Let the connection hold about `window_bytes` sent or waiting: what is in it cannot be overtaken."""
        # The system doubles the value, for its own book-keeping, and takes no more than an int.
        wanted = min(max(1, window_bytes // 2), _LARGEST_BUFFER)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted)

    def put(self, messages: Iterable[Message]) -> None:
        """Queue `messages`; returns at once.

        An older channel's go first: a peer that has not opened the newer one yet does not read past its messages.
        """
        self._queue.put([((message.channel, message.order), message) for message in messages])

    def close(self) -> None:
        """Send what is queued, as long as the peer takes it, and end both threads."""
        self._queue.close()
        self._threads[0].join(_SHUTDOWN_S)
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._threads[1].join(_SHUTDOWN_S)
        self._socket.close()

    def _run(self, step: Callable[[], bool]) -> None:
        try:
            while step():
                pass
        except Exception as error:
            self._lost(self.peer, error)

    def _send_one(self) -> bool:
        message = self._queue.take()
        if message is None:
            self._socket.shutdown(socket.SHUT_WR)
            return False
        payload = message.payload
        header = _HEADER.pack(message.channel, message.key, len(payload))
        sent = self._socket.sendmsg((header, payload))
        if sent < len(header):
            self._socket.sendall(header[sent:])
        if sent < len(header) + len(payload):
            self._socket.sendall(payload[max(0, sent - len(header)) :])
        return True

    def _receive_one(self) -> bool:
        head = bytearray(_HEADER.size)
        self._fill(memoryview(head))
        channel, key, size = _HEADER.unpack(head)
        self._deliver(self.peer, channel, key, size, self._fill)
        return True

    def _fill(self, buffer: memoryview) -> None:
        while len(buffer):
            got = self._socket.recv_into(buffer, len(buffer), socket.MSG_WAITALL)
            if got == 0:
                raise ConnectionError("it closed its end")
            buffer = buffer[got:]
