"""The mean of a vector over nodes, which travels in the background while the nodes compute.

It has two phases. In the first, every node sends part r of its vector to rank r. Each rank averages its part in
float32, in rank order. In the second, it sends the mean of its part to all others. Together a node sends
2 (n-1)/n of the vector, the least of any all-reduce. The second phase starts when the method calls `turn`, at the
same local step on every node, so the order of messages does not depend on speeds.

A vector travels as float32, as bf16, or as int8: the values of a chunk are multiples of a 127th of its largest, and
every chunk has one float32 scale. Values are rounded to the nearest once in each phase. What is lost is lost.
"""

from typing import Any

import torch
from torch import Tensor

from istbench.fabric import Fabric
from istbench.fabric.pending import Transfers
from istbench.methods.base import fitting
from istbench.methods.planned_node import CHUNK, SCALE_BYTES, Format, part_lengths

_LARGEST = 127


def encode(vector: Tensor, send: Format) -> Tensor:
    """The message of a float32 `vector` [length]: flat, of another dtype; `vector` itself for float32."""
    if send == "float32":
        return vector
    if send == "bf16":
        return vector.bfloat16()
    chunks = _in_chunks(vector)
    scales = chunks.abs().amax(dim=1) / _LARGEST
    whole = (chunks / torch.where(scales > 0, scales, 1)[:, None]).round_().to(torch.int8)
    return torch.cat([scales.view(torch.int8), whole.flatten()[: len(vector)]])


def decode(message: Tensor, length: int, send: Format) -> Tensor:
    """The float32 vector [length] of a `message` of `encode`."""
    if send != "int8":
        return message.float()
    head = SCALE_BYTES * -(-length // CHUNK)
    scales = message[:head].clone().view(torch.float32)
    chunks = _in_chunks(message[head:].float()) * scales[:, None]
    return chunks.flatten()[:length]


def _in_chunks(vector: Tensor) -> Tensor:
    """`vector` [length] as [chunks, CHUNK], filled up with zeros."""
    missing = -len(vector) % CHUNK
    return (torch.cat([vector, vector.new_zeros(missing)]) if missing else vector).view(-1, CHUNK)


class BackgroundMean:
    """The mean of one vector under way. Call `turn`, then `mean`; or `finish` and `peek` at any time.

    Every rank calls all methods but `state_dict` and `peek` alike.
    """

    def __init__(self, fabric: Fabric, length: int, send: Format) -> None:
        self._fabric, self._send = fabric, send
        self._lengths = part_lengths(length, fabric.world_size)
        self._parts: list[Tensor] = []  # messages with every rank's values of this rank's part
        self._means: list[Tensor] = []  # messages with the mean of each part, after `turn`
        self._transfers: Transfers | None = None

    def start(self, vector: Tensor) -> None:
        """Send the parts of `vector` on their way. It must not change until `mean`."""
        rank = self._fabric.rank
        leaving = dict(enumerate(encode(part, self._send) for part in vector.split(self._lengths)))
        self._parts = [leaving[rank] if peer == rank else torch.empty_like(leaving[rank]) for peer in leaving]
        self._transfers = self._exchange(leaving, self._parts)

    def turn(self) -> None:
        """Wait for the parts, and send the mean of this rank's part on its way."""
        if self._transfers is not None:
            self._transfers.wait()
        rank = self._fabric.rank
        total = self._decoded(self._parts[0], rank).clone()
        for part in self._parts[1:]:
            total += self._decoded(part, rank)
        mine = encode(total.div_(len(self._parts)), self._send)
        self._means = [mine if peer == rank else self._blank(peer, mine) for peer in range(len(self._parts))]
        self._transfers = self._exchange(dict.fromkeys(range(len(self._means)), mine), self._means)

    def mean(self) -> Tensor:
        """Wait for the means of all parts; returns them as a new vector."""
        if self._transfers is not None:
            self._transfers.wait()
        return self._joined(self._means)

    def peek(self) -> Tensor:
        """The value that `mean` will return. Call `finish` before."""
        return self._joined(self._means)

    @property
    def turned(self) -> bool:
        """Whether the second phase has started."""
        return bool(self._means)

    def finish(self) -> None:
        """Let the means of all parts arrive now."""
        if not self._means:
            self.turn()
        if self._transfers is not None:
            self._transfers.finish()

    def _exchange(self, leaving: dict[int, Tensor], arriving: list[Tensor]) -> Transfers:
        """Exchange messages with the other ranks; those of this rank stay."""
        sends, receives = (
            {peer: message for peer, message in messages.items() if peer != self._fabric.rank}
            for messages in (leaving, dict(enumerate(arriving)))
        )
        return self._fabric.exchange_async(sends, receives, "averaging changes")

    def _blank(self, rank: int, like: Tensor) -> Tensor:
        return torch.empty_like(encode(torch.zeros(self._lengths[rank], device=like.device), self._send))

    def _decoded(self, message: Tensor, rank: int) -> Tensor:
        return decode(message, self._lengths[rank], self._send)

    def _joined(self, means: list[Tensor]) -> Tensor:
        return torch.cat([self._decoded(message, rank) for rank, message in enumerate(means)])

    def state_dict(self) -> dict[str, Any]:
        """The messages of the mean by rank. Call `finish` before."""
        return {str(rank): message for rank, message in enumerate(self._means)}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """The inverse of `state_dict`, also in a group of another size: messages stay as the former group cut them.

        Raises:
            ValueError: for messages of other sizes.
        """
        self._lengths = part_lengths(sum(self._lengths), max(1, len(state)))
        like = torch.empty(0, device=device)
        blanks = [self._blank(peer, like) for peer in range(len(self._lengths))]
        self._means = [
            blank.copy_(fitting(state[str(peer)], blank, "changes in flight")) for peer, blank in enumerate(blanks)
        ]
        self._transfers = None
