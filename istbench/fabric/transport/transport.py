"""Messages between all nodes in the background, by priority, over TCP connections of their own.

gloo's point-to-point operations do not fit. A thread must block on a receive to detect its end. A receiver must
also know the next message in advance, but priorities change the order. Here a message carries a key, so the
receiver writes it directly to its buffer, in any order.
"""

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from istbench.fabric.signed_store import SignedStore
from istbench.fabric.transport.connections import connect_peers
from istbench.fabric.transport.link import PeerConnection, TransportMessage
from istbench.fabric.transport.urgent_first import WorkerThread


@dataclass
class Traffic:
    """Bytes of payload that this node sent and received."""

    sent: int = 0
    received: int = 0


class Receiver(Protocol):
    """Receives the messages of a channel. Threads of the transport call both methods."""

    def buffer(self, peer: int, key: int) -> memoryview:
        """The buffer for message `key` of `peer`, of the payload's size. Not called for an empty payload."""

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """Message `key` of `peer` has arrived, with `size` bytes. Called under the transport's lock.

        Returns whether the condition of a `Transport.wait` may hold now.
        """


class _Channel(NamedTuple):
    """A channel; see `Transport.open`."""

    receiver: weakref.ref[Receiver]
    counted: bool
    overtaking: bool


class Transport:
    """The connections of this node to all others.

    Every node opens the same channels in the same order. A message goes to the receiver of its channel. If the
    receiver no longer exists, the transport reads and drops the message. The next `wait` raises errors of threads.

    Attributes:
        lock: guards the state that receivers change in `arrived`.
        timeout_s: of a `wait`. traffic: counts the payloads of counted channels.
    """

    def __init__(self, store: SignedStore, rank: int, world_size: int, timeout_s: float, traffic: Traffic) -> None:
        self.timeout_s = timeout_s
        self.traffic = traffic
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._channels: list[_Channel] = []
        self._failure: Exception | None = None  # of a task
        self._gone: dict[int, str] = {}  # reason, by peer
        self._closing = False
        self._workers = [WorkerThread("transport tasks", self._fail)]
        connections = connect_peers(store, rank, world_size, timeout_s)
        self._links = {
            peer: PeerConnection(peer, connection, self._deliver, self._lost)
            for peer, connection in sorted(connections.items())
        }

    def open(
        self,
        receiver: Receiver,
        *,
        window_bytes: int | None = None,
        counted: bool = True,
        overtaking: bool = True,
    ) -> int:
        """Open a channel to `receiver`, which is referenced weakly; returns its number.

        `window_bytes` limits the send buffer of each connection: an urgent message cannot overtake bytes in it.
        None keeps the kernel's default. counted: whether the transport counts the bytes of the channel.
        overtaking: false if `receiver` may call `stay`. Its peer then reads nothing more, so a message of this
        channel must not overtake one that the peer needs first.
        """
        with self._changed:
            self._channels.append(_Channel(weakref.ref(receiver), counted, overtaking))
            self._changed.notify_all()
        if window_bytes is not None:
            for link in self._links.values():
                link.limit(window_bytes)
        return len(self._channels) - 1

    @property
    def has_channels(self) -> bool:
        return bool(self._channels)

    def send(self, peer: int, messages: Iterable[TransportMessage]) -> None:
        """Queue `messages` of one channel to `peer` and return at once."""
        messages = list(messages)
        size = sum(len(message.payload) for message in messages if self._channels[message.channel].counted)
        if size:  # a receiver that holds the lock may send what does not count
            with self.lock:
                self.traffic.sent += size
        may_overtake = all(self._channels[message.channel].overtaking for message in messages)
        self._links[peer].put(messages, behind=None if may_overtake else len(self._channels) - 1)

    def work(self, tasks: Iterable[tuple[int, Callable[[], None]]]) -> None:
        """Queue (order, task) pairs for the transport's own thread, which runs the lowest order first."""
        self._workers[0].put(tasks)

    def worker(self, name: str) -> WorkerThread:
        """Start another thread for tasks. It ends with the transport."""
        self._workers.append(WorkerThread(name, self._fail))
        return self._workers[-1]

    def round_trip_s(self) -> float:
        """Seconds to the most distant peer and back; 0 where the kernel does not tell."""
        return max((link.round_trip_s() for link in self._links.values()), default=0.0)

    def wait(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]]) -> None:
        """Wait until `done()`, which needs messages of the peers `awaited()`. Both are called under the lock.

        Raises:
            ConnectionError: if an awaited peer has left.
            TimeoutError: after the time-out.
            Exception: the error of a task.
        """
        with self._changed:
            in_time = self._changed.wait_for(lambda: done() or self._hopeless(awaited), self.timeout_s)
            if done():
                return
        if self._failure is not None:
            raise self._failure
        if not in_time:
            raise TimeoutError("timed out")
        raise ConnectionError("; ".join(f"rank {peer}: {reason}" for peer, reason in sorted(self._gone.items())))

    def _hopeless(self, awaited: Callable[[], Iterable[int]]) -> bool:
        return self._failure is not None or bool(self._gone and not self._gone.keys().isdisjoint(awaited()))

    def notify(self) -> None:
        """Make `wait` check its condition again. Call it under the lock."""
        self._changed.notify_all()

    def stay(self, ready: Callable[[], bool]) -> None:
        """Wait on a receiving thread until `ready()`. Call it under the lock.

        Raises:
            ConnectionError: if the transport closes first.
        """
        self._changed.wait_for(lambda: ready() or self._closing)
        if not ready():
            raise ConnectionError("this node has left")

    def close(self) -> None:
        """Send the queued messages and end all threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.close()
        for link in self._links.values():
            link.close()

    def _deliver(self, peer: int, number: int, key: int, size: int, fill: Callable[[memoryview], None]) -> None:
        receiver = self._receiver(number)
        if receiver is None:
            fill(memoryview(bytearray(size)))
            return
        if size:
            buffer = receiver.buffer(peer, key)
            if len(buffer) != size:
                raise ValueError(
                    f"it sent {size} bytes in place of {len(buffer)}: its model differs from this rank's"
                )
            fill(buffer)
        self._arrived(receiver, number, peer, key, size)

    def _arrived(self, receiver: Receiver, number: int, peer: int, key: int, size: int) -> None:
        with self._changed:
            if self._channels[number].counted:
                self.traffic.received += size
            if receiver.arrived(peer, key, size):
                self._changed.notify_all()

    def _receiver(self, number: int) -> Receiver | None:
        """The receiver of channel `number`; waits if a peer opened the channel before this node."""
        with self._changed:
            self._changed.wait_for(lambda: number < len(self._channels) or self._closing)
            return self._channels[number].receiver() if number < len(self._channels) else None

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _lost(self, peer: int, error: Exception) -> None:
        with self._changed:
            self._gone.setdefault(peer, str(error))
            self._changed.notify_all()
