"""The messages of a `BackgroundMean` in a plan, and the runs of layers that are its vectors. Needs no torch."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from istbench.methods.planned_node import PlannedNode

Format = Literal["float32", "bf16", "int8"]
CHUNK = 256  # values with one scale
SCALE_BYTES = 4


def message_bytes(length: int, send: Format) -> int:
    """Bytes of the message of a vector of `length` values."""
    if send == "int8":
        return length + SCALE_BYTES * -(-length // CHUNK)
    return length * (2 if send == "bf16" else 4)


def part_lengths(length: int, nodes: int) -> list[int]:
    """The length of each rank's part of a vector, as `torch.tensor_split` cuts it."""
    return [length // nodes + (rank < length % nodes) for rank in range(nodes)]


class PlannedMean:
    """The messages of a `BackgroundMean` of `length` values, in a plan of `node`."""

    def __init__(self, node: PlannedNode, length: int, send: Format) -> None:
        self._node = node
        self._sizes = [message_bytes(part, send) for part in part_lengths(length, node.world_size)]
        self._transfers: list[int] = []

    def start(self) -> None:
        """Send the parts on their way."""
        self._transfers = self._posted(
            arriving=[self._sizes[self._node.rank]] * len(self._sizes), leaving=self._sizes
        )

    def turn(self) -> None:
        """Wait for the parts, and send their mean on its way."""
        self.wait()
        self._transfers = self._posted(
            arriving=self._sizes, leaving=[self._sizes[self._node.rank]] * len(self._sizes)
        )

    def wait(self) -> None:
        """Wait for the messages of the current phase."""
        self._node.wait(self._transfers)

    def _posted(self, *, arriving: Sequence[int], leaving: Sequence[int]) -> list[int]:
        return [
            self._node.post(kind, sizes[peer], [peer])
            for kind, sizes in (("receive", arriving), ("send", leaving))
            for peer in sorted(self._node.peers)
            if sizes[peer]
        ]


def balanced_runs(sizes: Sequence[int], count: int) -> list[range]:
    """Cut `sizes` into `count` runs of neighbours, none empty, so that the largest sum is as small as possible."""

    def runs(limit: int) -> list[range]:
        found: list[range] = []
        first = total = 0
        for number, size in enumerate(sizes):
            scarce = len(sizes) - number == count - 1 - len(found)  # the rest must be runs of one each
            if number > first and (total + size > limit or scarce):
                found.append(range(first, number))
                first, total = number, 0
            total += size
        return [*found, range(first, len(sizes))]

    limits = range(max(sizes), sum(sizes) + 1)
    return runs(limits[bisect_left(limits, True, key=lambda limit: len(runs(limit)) <= count)])
