"""The entry of a collective: its name, its code in traces and its messages.

Each node sends its messages of a collective in order. A message leaves when the message before it has left, the
messages that it needs have arrived, and its receiver has started the same collective. In a collective that sends at
once, a message does not wait for the message before it. A node is done when it has sent and received all of its
messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Backend: TypeAlias = Literal["gloo", "nccl"]
"""The library that carries the collectives of a cluster."""

_NCCL_CHUNK = 2**20  # bytes that a node holds before it passes them on: 512 KiB in each of two channels
_CHUNKS_PER_HOP = 32  # at most; filling the ring then takes 3 % of the time, and the simulation stays short


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveMessage:
    """A message that one node sends in a collective. Other nodes are named by their distance from it in ranks.

    Attributes:
        to: the receiver.
        after: the sender waits until its received messages count at least this much together.
        counts: the message counts this much at its receiver.
        part_of: the node whose tensor it carries.
        parts: it carries one of this many equal parts of that tensor; infinity for an empty message.
    """

    to: int
    after: int
    counts: int = 1
    part_of: int = 0
    parts: float = 1.0


# One row for each place, which is the rank counted from the root; or a single row for all nodes. Equal rows may be
# one object.
Schedule: TypeAlias = Sequence[Sequence[CollectiveMessage]]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A kind of collective.

    Attributes:
        name: as the fabric posts it. code: its number in saved traces; a new collective takes the next free one.
        schedule: its messages between this many nodes. nccl: the same in NCCL, if they differ.
        nccl_in_chunks: the same in NCCL, if it cuts the tensor in this many chunks.
        chakra: its comm_type in Chakra's schema.
        in_turns: without NCCL, the fabric exchanges the parts over its transport, between distant nodes at once.
        gloo_segment: bytes of a segment if gloo cuts each message, and keeps two segments under way: a further one
            waits until word of an earlier one has come, one latency on average. 0 for whole messages.
        rooted: it has a root. sizes_differ: nodes may post tensors of different sizes. gloo_sends_at_once: a node
            gives gloo all its messages at once, and they share its link.
    """

    name: str
    code: int
    chakra: int
    schedule: Callable[[int], Schedule]
    nccl: Callable[[int], Schedule] | None = None
    nccl_in_chunks: Callable[[int, int], Schedule] | None = None
    in_turns: bool = False
    rooted: bool = False
    sizes_differ: bool = False
    gloo_sends_at_once: bool = False
    gloo_segment: int = 0

    def between(self, nodes: int, backend: Backend = "gloo", chunks: int = 1, *, far: bool = False) -> Schedule:
        """Its messages between `nodes` nodes; `chunks` as `chunks` returns it. far: as in `sends_at_once`."""
        if far and self.in_turns and backend == "gloo":
            return [[replace(message, after=0) for message in row] for row in self.schedule(nodes)]
        if backend == "nccl" and self.nccl_in_chunks is not None:
            return self.nccl_in_chunks(nodes, chunks)
        return self.nccl(nodes) if backend == "nccl" and self.nccl is not None else self.schedule(nodes)

    def sends_at_once(self, backend: Backend, *, far: bool = False) -> bool:
        """Whether a message of a node does not wait until the node's message before it has left.

        far: between distant nodes, where each turn would take a latency.
        """
        return backend == "gloo" and (self.gloo_sends_at_once or (far and self.in_turns))

    def chunks(self, size: int, nodes: int, backend: Backend) -> int:
        """The number of chunks of a tensor of `size` bytes."""
        if backend != "nccl" or self.nccl_in_chunks is None:
            return 1
        return max(1, min(-(-size // _NCCL_CHUNK), _CHUNKS_PER_HOP * (nodes - 2)))
