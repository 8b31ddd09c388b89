"""Exchanges over the transport, while the nodes compute: a message to each peer, all at once or in turns."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor

from istbench.fabric.transport import Transport, TransportMessage, payload_of

_NUMBERS = 2**32  # a message's key has 32 bits

Turn: TypeAlias = tuple[Mapping[int, Tensor], Mapping[int, Tensor]]
"""Buffers to send and buffers to fill, by peer: contiguous, in host memory, and not empty."""


@dataclass(kw_only=True)
class _Exchange:
    """An exchange under way.

    Attributes:
        arriving: by peer, the buffer of a message that has not arrived. leaving: the peers of messages that have
            started and not left.
        turns: what later turns send, and the peers whose messages they receive.
        awaited: the peers whose messages the next turn waits for.
    """

    order: int
    arriving: dict[int, memoryview]
    turns: deque[tuple[Mapping[int, Tensor], frozenset[int]]]
    leaving: set[int]
    awaited: frozenset[int] = frozenset()


class Exchanges:
    """The exchanges of a node. All nodes begin them in the same order.

    The messages of a turn leave after those of the turn before have left and arrived here. If a peer's message
    comes before this node begins the exchange, the receiving thread waits for the buffer.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._begun = 0
        self._under_way: dict[int, _Exchange] = {}
        self._channel = transport.open(self, counted=False, overtaking=False)

    def begin(self, turns: Sequence[Turn]) -> int:
        """Start to fill the buffers of all `turns`; each peer stands in one turn as receiver and in one as sender.

        Returns the number of the exchange. Do not change a buffer until the exchange is complete.
        """
        number, order = self._begun % _NUMBERS, self._begun
        self._begun += 1
        exchange = _Exchange(
            order=order,
            arriving={peer: payload_of(buffer) for _, receives in turns for peer, buffer in receives.items()},
            turns=deque((sends, frozenset(receives)) for sends, receives in turns),
            leaving=set(),
        )
        with self._transport.lock:
            self._under_way[number] = exchange
            self._transport.notify()
            self._advance(number)
        return number

    def missing(self, number: int) -> set[int]:
        """The peers of messages of exchange `number` that have not arrived here, or not left.

        Call it under the transport's lock.
        """
        exchange = self._under_way.get(number)
        if exchange is None:
            return set()
        return exchange.arriving.keys() | exchange.leaving | {peer for sends, _ in exchange.turns for peer in sends}

    def buffer(self, peer: int, key: int) -> memoryview:
        """The buffer of exchange `key` for the message of `peer`; waits until the exchange begins."""
        with self._transport.lock:
            self._transport.stay(lambda: key in self._under_way and peer in self._under_way[key].arriving)
            return self._under_way[key].arriving[peer]

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """Exchange `key` has the message of `peer`."""
        del self._under_way[key].arriving[peer]
        return self._advance(key)

    def _left(self, peer: int, number: int) -> None:
        """The message of exchange `number` to `peer` has left. Called on the sending thread."""
        with self._transport.lock:
            self._under_way[number].leaving.discard(peer)
            if self._advance(number):
                self._transport.notify()

    def _advance(self, number: int) -> bool:
        """Start the turns that need not wait; returns whether the exchange is complete. Call it under the lock."""
        exchange = self._under_way[number]
        while exchange.turns and not exchange.leaving and exchange.awaited.isdisjoint(exchange.arriving):
            sends, exchange.awaited = exchange.turns.popleft()
            exchange.leaving.update(sends)
            for peer, buffer in sends.items():
                left = partial(self._left, peer, number)
                message = TransportMessage(self._channel, exchange.order, number, payload_of(buffer), left)
                self._transport.send(peer, [message])
        complete = not (exchange.turns or exchange.leaving or exchange.arriving)
        if complete:
            del self._under_way[number]
        return complete


def peers_by_turn(rank: int, nodes: int) -> list[tuple[int, int]]:
    """The receiver and the sender of node `rank` in each turn: d ranks after it and d before, for d from 1."""
    return [((rank + distance) % nodes, (rank - distance) % nodes) for distance in range(1, nodes)]


def with_ranks(name: str, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor]) -> str:
    """The `name` of an exchange, with the ranks of its peers."""
    return f"{name} with ranks {', '.join(map(str, sorted(leaving.keys() | arriving.keys())))}"
