"""Exchanges beside what the nodes compute, over the transport: one message to each peer."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from istbench.fabric.transport import Message, Transport, payload_of

_NUMBERS = 2**32  # that a message has room for


class Exchanges:
    """The exchanges of a node, which all nodes begin in the same order.

    A peer's message may come before this node has begun that exchange: the thread that receives from the peer waits
    for its buffer then.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._begun = 0
        self._awaited: dict[tuple[int, int], memoryview] = {}  # by peer and exchange
        self._channel = transport.open(self)

    def begin(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> int:
        """Start filling `receives` and sending `sends`, contiguous buffers in host memory by peer; its number.

        What is sent must stay as it is.
        """
        number, self._begun = self._begun % _NUMBERS, self._begun + 1
        with self._transport.lock:
            self._awaited |= {(peer, number): payload_of(buffer) for peer, buffer in receives.items()}
            self._transport.notify()
        for peer, buffer in sends.items():
            self._transport.send(peer, [Message(self._channel, self._begun, number, payload_of(buffer))])
        return number

    def missing(self, number: int, peers: Iterable[int]) -> set[int]:
        """Those of `peers` that exchange `number` has not all of yet. Call it under the transport's lock."""
        return {peer for peer in peers if (peer, number) in self._awaited}

    def buffer(self, peer: int, key: int) -> memoryview:
        """Where exchange `key` wants what `peer` sends, once it has begun."""
        with self._transport.lock:
            self._transport.stay(lambda: (peer, key) in self._awaited)
            return self._awaited[peer, key]

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """Exchange `key` has what `peer` sent."""
        del self._awaited[peer, key]
        return True


def not_empty(buffers: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Those of `buffers` that hold anything, by rising peer."""
    return {peer: buffer for peer, buffer in sorted(buffers.items()) if buffer.numel()}


def with_ranks(name: str, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor]) -> str:
    """`name` of an exchange, with the peers that it is with."""
    return f"{name} with ranks {', '.join(map(str, sorted(leaving.keys() | arriving.keys())))}"
