"""A local step and a node of a plan, without torch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from istbench.cluster.trace_builder import Buffer, TraceBuilder, Turn, not_empty, post_turns


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A local step on the meta device.

    Attributes:
        peak: the most bytes at one time of activations and gradients. None if the step does not run there.
        batch: bytes of its minibatch, which `peak` includes.
        flops: floating-point operations of its matrix products, None as for `peak`. bytes: that its other
            operations read and write.
        uses: trained parameters, by number, in the order of their first use, each with the share of the operations
            before it. ready: the same in the order in which gradients are complete.
    """

    peak: int | None
    batch: int
    flops: float | None
    uses: tuple[tuple[int, float], ...]
    ready: tuple[tuple[int, float], ...]
    bytes: float = 0.0


class PlannedNode:
    """The trace of one node for planned rounds; takes the place of a recorder.

    Attributes:
        cost: of a local step of `seconds`. builder: holds the trace.
    """

    finished = False

    def __init__(self, rank: int, world_size: int, cost: StepCost, seconds: float) -> None:
        self.rank, self.world_size = rank, world_size
        self.builder = TraceBuilder(lambda: 0.0)
        self.cost, self._seconds = cost, seconds
        self._done = 0.0

    @property
    def peers(self) -> list[int]:
        """The other ranks, from the next one on."""
        return [(self.rank + further) % self.world_size for further in range(1, self.world_size)]

    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int:
        """An operation starts; see `TraceBuilder.post`."""
        return self.builder.post(kind, bytes, peers, priority, after)

    def wait(self, ops: Iterable[int]) -> None:
        for op in ops:
            self.builder.wait(op)

    def worked(self, op: int, seconds: float) -> None:
        """Work `op` beside the training thread takes `seconds`."""

    def update(self, share: float = 1.0) -> None:
        """The optimizer steps over `share` of the values of the model. In a plan, that takes no time."""

    def only_gradients(self) -> None:
        """The optimizer does not step in this local step."""

    def update_seconds(self, share: float) -> float:
        """Seconds of a server's update of `share` of the values, with the gradients of all nodes."""
        return 0.0

    def steps(self, count: int, *, updates: bool = True) -> None:
        """`count` local steps without an exchange. updates: whether the optimizer steps in them."""
        self.builder.compute(count * self._seconds)

    def all_reduce(self, bytes: int) -> None:
        """All-reduce `bytes` bytes, and wait for it."""
        self.wait([self.post("all_reduce", bytes)])

    def all_gather_async(self, parts: Buffer, mine: Buffer, name: str) -> "PlannedTransfers":
        """Gather `mine` (meta device) of all nodes; see `Fabric.all_gather_async`."""
        return PlannedTransfers(self, [self.post("all_gather", mine.nbytes)])

    def reduce_scatter_mean_async(self, mine: Buffer, parts: Buffer, name: str) -> "PlannedTransfers":
        """Average `parts` (meta device) over all nodes; see `Fabric.reduce_scatter_mean_async`."""
        return PlannedTransfers(self, [self.post("reduce_scatter", parts.nbytes)])

    def exchange_async(
        self, sends: Mapping[int, Buffer], receives: Mapping[int, Buffer], name: str
    ) -> "PlannedTransfers":
        """Exchange buffers (meta device) with peers; see `Fabric.exchange_async`."""
        numbers = [self._post_receive(peer, buffer) for peer, buffer in not_empty(receives).items()]
        numbers += [self._post_send(peer, buffer) for peer, buffer in not_empty(sends).items()]
        return PlannedTransfers(self, numbers)

    def exchange_in_turns_async(self, turns: Sequence[Turn], name: str) -> "PlannedTransfers":
        """Exchange buffers (meta device) in turns; see `Fabric.exchange_in_turns_async`."""
        turns = [(not_empty(leaving), not_empty(arriving)) for leaving, arriving in turns]
        return PlannedTransfers(self, post_turns(turns, self._post_receive, self._post_send))

    def exchange_among_all(self, turns: Sequence[Turn]) -> None:
        """Exchange buffers (meta device), and wait for them; see `Fabric.exchange_among_all`."""
        self.wait(post_turns(turns, self._post_receive, self._post_send, both=True))

    def _post_receive(self, peer: int, buffer: Buffer, after: Sequence[int] = ()) -> int:
        return self.post("receive", buffer.nbytes, [peer], after=after)

    def _post_send(self, peer: int, buffer: Buffer, after: Sequence[int] = ()) -> int:
        return self.post("send", buffer.nbytes, [peer], after=after)

    def forward(self) -> Iterator[int]:
        """A forward pass; yields each trained parameter before its first use."""
        self._done = 0.0
        for number, share in self.cost.uses:
            self._compute_to(share)
            yield number

    def backward(self) -> Iterator[int]:
        """The backward pass after a forward pass; yields each trained parameter once its gradient is complete."""
        for number, share in self.cost.ready:
            self._compute_to(share)
            yield number
        self._compute_to(1.0)

    def _compute_to(self, share: float) -> None:
        if share > self._done:
            self.builder.compute((share - self._done) * self._seconds)
            self._done = share


class PlannedTransfers:
    """Transfers of a planned node in flight."""

    def __init__(self, node: PlannedNode, numbers: Sequence[int]) -> None:
        self._node, self._numbers = node, numbers

    def wait(self) -> None:
        self._node.wait(self._numbers)
