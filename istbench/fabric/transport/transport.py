"""Messages between all nodes in the background, by priority, over TCP connections of their own.

gloo's point-to-point operations are not used: nothing tells which of many receives is done but a thread blocked
on each, and a receiver must know what comes next, which is what priorities change. Here a message carries its
key, so it is received straight to where it belongs, in whatever order it was sent.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from istbench.fabric.signed_store import SignedStore
from istbench.fabric.traffic import Traffic
from istbench.fabric.transport.connections import connect_peers
from istbench.fabric.transport.link import Link, Message
from istbench.fabric.transport.worker import Worker


class Receiver(Protocol):
    """Who gets the messages of a channel. Both methods are called on threads of the transport."""

    def buffer(self, peer: int, key: int) -> memoryview:
        """Where the payload of message `key` of `peer` goes; it is as long as that payload, or the payload is
        empty."""

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """Message `key` of `peer` is there, `size` bytes. Called under the transport's lock; returns whether
        what `Transport.wait` waits for may be so now."""


class Transport:
    """The connections of this node to all others.

    Every node opens the same channels in the same order. A message goes to the receiver of its channel; once a
    receiver is gone, its messages are read and dropped. What goes wrong on a thread is raised by the next `wait`.

    Attributes:
        lock: guards what receivers change in `arrived`.

    Messages arrive `latency_s` after their last byte: for networks that are really shaped but in their latency.
    """

    def __init__(
        self,
        store: SignedStore,
        rank: int,
        world_size: int,
        timeout_s: float,
        traffic: Traffic,
        latency_s: float = 0.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._latency_s = latency_s
        self._traffic = traffic
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._receivers: list[weakref.ref[Receiver]] = []
        self._failure: Exception | None = None  # of a task
        self._gone: dict[int, str] = {}  # why, by peer
        self._closing = False
        self._workers = [Worker("transport tasks", self._fail)]
        self._late = self.worker("latency") if latency_s else None
        connections = connect_peers(store, rank, world_size, timeout_s)
        self._links = {
            peer: Link(peer, connection, self._deliver, self._lost)
            for peer, connection in sorted(connections.items())
        }

    def open(self, receiver: Receiver, *, window_bytes: int | None = None) -> int:
        """A new channel, whose messages go to `receiver`, which is held weakly; returns its number.

        `window_bytes` bounds what is handed to each connection and so can no longer be overtaken; None leaves
        that to the system.
        """
        with self._changed:
            self._receivers.append(weakref.ref(receiver))
            self._changed.notify_all()
        if window_bytes is not None:
            for link in self._links.values():
                link.limit(window_bytes)
        return len(self._receivers) - 1

    def send(self, peer: int, messages: Iterable[Message]) -> None:
        """Queue `messages` to `peer`; returns at once."""
        messages = list(messages)
        with self.lock:
            self._traffic.sent += sum(len(message.payload) for message in messages)
        self._links[peer].put(messages)

    def work(self, tasks: Iterable[tuple[int, Callable[[], None]]]) -> None:
        """Run (order, task) pairs on the transport's own thread, the lowest order first."""
        self._workers[0].put(tasks)

    def worker(self, name: str) -> Worker:
        """Another thread for tasks, which ends with the transport."""
        self._workers.append(Worker(name, self._fail))
        return self._workers[-1]

    def wait(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]]) -> None:
        """Return once `done()`; `awaited()` are the peers without whose messages it cannot come to that.

        Both are called under the lock.

        Raises:
            ConnectionError: where an awaited peer is gone.
            TimeoutError: when time is out.
            Exception: what a task raised.
        """
        with self._changed:
            in_time = self._changed.wait_for(lambda: done() or self._hopeless(awaited), self._timeout_s)
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
        """Let `wait` look again. Call it under the lock."""
        self._changed.notify_all()

    def stay(self, ready: Callable[[], bool]) -> None:
        """On a thread that receives: return once `ready()`. Call it under the lock.

        Raises:
            ConnectionError: where the transport closes first.
        """
        self._changed.wait_for(lambda: ready() or self._closing)
        if not ready():
            raise ConnectionError("this node has left")

    def close(self) -> None:
        """Send what is queued and end all threads."""
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
                raise ValueError(f"it sent {size} bytes where {len(buffer)} belong: its model is another one")
            fill(buffer)
        self._after_latency(partial(self._arrived, receiver, peer, key, size))

    def _after_latency(self, task: Callable[[], None]) -> None:
        if self._late is None:
            task()
        else:
            due = time.monotonic() + self._latency_s
            self._late.put([(due, partial(_run_at, due, task))])

    def _arrived(self, receiver: Receiver, peer: int, key: int, size: int) -> None:
        with self._changed:
            self._traffic.received += size
            if receiver.arrived(peer, key, size):
                self._changed.notify_all()

    def _receiver(self, number: int) -> Receiver | None:
        """Who listens to channel `number`; a peer may have opened it before this node did."""
        with self._changed:
            self._changed.wait_for(lambda: number < len(self._receivers) or self._closing)
            return self._receivers[number]() if number < len(self._receivers) else None

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _lost(self, peer: int, error: Exception) -> None:
        # As late as all that it sent before.
        self._after_latency(partial(self._note_lost, peer, error))

    def _note_lost(self, peer: int, error: Exception) -> None:
        with self._changed:
            self._gone.setdefault(peer, str(error))
            self._changed.notify_all()


def _run_at(due: float, task: Callable[[], None]) -> None:
    time.sleep(max(0.0, due - time.monotonic()))
    task()
