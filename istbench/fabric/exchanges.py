"""Asynchronous exchanges over the transport: one message to each peer, while the nodes compute."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from istbench.fabric.transport import Transport, TransportMessage, payload_of

_NUMBERS = 2**32  # a message's key has 32 bits


class Exchanges:
    """The exchanges of a node. All nodes begin them in the same order.

    If a peer's message comes before this node begins the exchange, the receiving thread waits for the buffer.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._begun = 0
        self._awaited: dict[tuple[int, int], memoryview] = {}  # by peer and exchange
        self._channel = transport.open(self)

    def begin(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> int:
        """Start to fill `receives` and send `sends`, contiguous buffers in host memory by peer.

        Returns the number of the exchange. Do not change `sends` until it is complete.
        """
        number, self._begun = self._begun % _NUMBERS, self._begun + 1
        with self._transport.lock:
            self._awaited |= {(peer, number): payload_of(buffer) for peer, buffer in receives.items()}
            self._transport.notify()
        for peer, buffer in sends.items():
            self._transport.send(peer, [TransportMessage(self._channel, self._begun, number, payload_of(buffer))])
        return number

    def missing(self, number: int, peers: Iterable[int]) -> set[int]:
        """The `peers` whose message of exchange `number` has not arrived. Call it under the transport's lock."""
        return {peer for peer in peers if (peer, number) in self._awaited}

    def buffer(self, peer: int, key: int) -> memoryview:
        """The buffer of exchange `key` for the message of `peer`; waits until the exchange begins."""
        with self._transport.lock:
            self._transport.stay(lambda: (peer, key) in self._awaited)
            return self._awaited[peer, key]

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """Exchange `key` has the message of `peer`."""
        del self._awaited[peer, key]
        return True


def not_empty(buffers: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The `buffers` that are not empty, by rising peer."""
    return {peer: buffer for peer, buffer in sorted(buffers.items()) if buffer.numel()}


def with_ranks(name: str, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor]) -> str:
    """The `name` of an exchange, with the ranks of its peers."""
    return f"{name} with ranks {', '.join(map(str, sorted(leaving.keys() | arriving.keys())))}"
