"""The connection to one peer: a thread sends messages, the most urgent first, and a thread receives."""

import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from istbench.fabric.transport.urgent_first import UrgentFirst

_HEADER = struct.Struct("<IIQ")
_SHUTDOWN_S = 5.0
_LEAST_ROUND_TRIP = struct.Struct("=148xI")  # tcpi_min_rtt in tcp_info of <linux/tcp.h>
_UNKNOWN = 2**32 - 1
_LARGEST_BUFFER = 2**30
_LONG_S = 2e-3  # there and back


class TransportMessage(NamedTuple):
    """A message to a peer. In a channel, a message of lower `order` is more urgent.

    `payload` must not change until the message has left. Then the sending thread calls `left`.
    """

    channel: int
    order: int
    key: int
    payload: memoryview
    left: Callable[[], None] | None = None


def _place(message: TransportMessage, behind: int | None) -> tuple[int, bool, int]:
    return (message.channel, False, message.order) if behind is None else (behind, True, message.order)


def payload_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, as bytes."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


class PeerConnection:
    """Sends messages to one peer and receives messages from it.

    The receiving thread calls `deliver(peer, channel, key, size, fill)` for every message. `deliver` must call
    `fill` once with a buffer of `size` bytes. If a thread ends with an error, for example because the peer left, it
    calls `lost(peer, error)`.
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
        self._queue: UrgentFirst[TransportMessage] = UrgentFirst()
        self._sending = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name=f"{task} {peer}", daemon=True)
            for task, step in (("send to", self._send_one), ("receive from", self._receive_one))
        ]
        for thread in self._threads:
            thread.start()

    def limit(self, window_bytes: int) -> None:
        """Let about `window_bytes` wait in the socket. No urgent message can overtake those in it.

        The send buffer holds them, and what the peer has not acknowledged. Over a long link that is most of it: a
        short buffer then carries a window in each round trip. There the kernel limits the unsent bytes alone.
        """
        if self.round_trip_s() >= _LONG_S and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            wanted = min(max(1, window_bytes), _LARGEST_BUFFER)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, wanted)
            return
        # The kernel doubles the value for its own book-keeping, and accepts only an int.
        wanted = min(max(1, window_bytes // 2), _LARGEST_BUFFER)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted)

    def round_trip_s(self) -> float:
        """The shortest round trip so far, by the kernel, whatever the processes do; 0 where it does not tell."""
        if sys.platform != "linux":
            return 0.0
        info = b""
        with contextlib.suppress(OSError):  # not of TCP
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LEAST_ROUND_TRIP.size)
        if len(info) < _LEAST_ROUND_TRIP.size:
            return 0.0
        (microseconds,) = _LEAST_ROUND_TRIP.unpack(info)
        return 0.0 if microseconds == _UNKNOWN else float(microseconds) / 1e6

    def put(self, messages: Iterable[TransportMessage], *, behind: int | None = None) -> None:
        """Queue `messages` and return at once.

        Messages of an older channel go first, since a peer stops reading at a channel that it has not opened yet.
        With `behind`, these go after all queued messages of the channels up to that one.
        """
        self._queue.put([(_place(message, behind), message) for message in messages])

    def close(self) -> None:
        """Send the queued messages while the peer reads, then end both threads."""
        self._queue.close()
        self._threads[0].join(_SHUTDOWN_S)
        with contextlib.suppress(OSError):  # the peer closed first
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
        with self._sending:
            sent = self._socket.sendmsg((header, payload))
            if sent < len(header):
                self._socket.sendall(header[sent:])
            if sent < len(header) + len(payload):
                self._socket.sendall(payload[max(0, sent - len(header)) :])
            if message.left is not None:
                message.left()
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
                # The peer may have left because it has this node's last message, whose `left` is still to come.
                if self._sending.acquire(timeout=_SHUTDOWN_S):
                    self._sending.release()
                raise ConnectionError("the peer closed the connection")
            buffer = buffer[got:]
