"""A local step and a node of a plan, and the rounds of methods there from sizes. Needs no torch."""

import collections
import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
        updated: bytes of the parameters that the backward pass itself updates, so that they have no gradient.
    """

    peak: int | None
    batch: int
    flops: float | None
    uses: tuple[tuple[int, float], ...]
    ready: tuple[tuple[int, float], ...]
    bytes: float = 0.0
    updated: int = 0


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


Format = Literal["float32", "bf16", "int8"]
CHUNK = 256  # values with one scale
SCALE_BYTES = 4


def message_bytes(length: int, send: Format) -> int:
    if send == "int8":
        return length + SCALE_BYTES * -(-length // CHUNK)
    return length * (2 if send == "bf16" else 4)


def part_lengths(length: int, nodes: int) -> list[int]:
    """The length of each rank's part of a vector, as `torch.tensor_split` cuts it."""
    return [length // nodes + (rank < length % nodes) for rank in range(nodes)]


def _post_phase(node: PlannedNode, parts: Sequence[int], *, second: bool) -> list[int]:
    """Post the messages of the first or the second phase of a mean whose parts have so many bytes in a message."""
    own = [parts[node.rank]] * len(parts)
    arriving, leaving = (parts, own) if second else (own, parts)
    return [
        node.post(kind, sizes[peer], [peer])
        for kind, sizes in (("receive", arriving), ("send", leaving))
        for peer in sorted(node.peers)
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


Rounds = Callable[[PlannedNode], Iterator[None]]
"""The rounds of a node, one after another."""
LEAST_STEPS = 4
"""Local steps of a planned trace, at least."""
MOST_EVENTS = 1_000_000
"""Events of all nodes that a simulation replays in minutes."""


@dataclass(frozen=True, kw_only=True)
class PlannedRounds:
    """Rounds of `steps` local steps each. window, last_bytes: as in `TraceMeta`."""

    rounds: Rounds
    steps: int = 1
    window: int | None = None
    last_bytes: int = 0


def rounds_after(steps: int, averaged: Sequence[int], gathered: Sequence[int] = ()) -> Rounds:
    """Rounds of `steps` local steps, then all-gathers and all-reduces of that many bytes, one after another."""

    def rounds(node: PlannedNode) -> Iterator[None]:
        while True:
            node.steps(steps)
            for size in gathered:
                node.wait([node.post("all_gather", size)])
            for size in averaged:
                node.all_reduce(size)
            yield

    return rounds


def streaming_rounds(
    lengths: Sequence[int], send: Format, *, delay: int, gap: int, averaged: Sequence[int] = ()
) -> Rounds:
    """Rounds in which one vector of these `lengths` after another averages in the background of the local steps.

    delay: local steps of an average on its way. gap: from the start of one to the next. averaged: bytes of the
    all-reduces at the end of a round.
    """
    half = (delay + 1) // 2

    def rounds(node: PlannedNode) -> Iterator[None]:
        # The bytes of a message of each part, of each vector.
        vectors = [[message_bytes(part, send) for part in part_lengths(own, node.world_size)] for own in lengths]
        flying, transfers = vectors[-1], list[int]()  # of the round before, half-way in the first one

        def turn() -> None:
            nonlocal transfers
            node.wait(transfers)
            transfers = _post_phase(node, flying, second=True)

        while True:
            for parts in vectors:
                if delay:
                    node.steps(half)
                    turn()
                    node.steps(delay - half)
                    node.wait(transfers)
                node.steps(gap - delay)
                flying, transfers = parts, _post_phase(node, parts, second=False)
                if not delay:
                    turn()
                    node.wait(transfers)
            for size in averaged:
                node.all_reduce(size)
            yield

    return rounds


@dataclass
class ShardedStep:
    """A step of `node` that gathers parameters in groups shortly before their use, as `fsdp` does.

    Attributes:
        group_of: the group of each trained parameter, by number. own: the group that stays for the whole step.
        gather: starts gathering a group, and returns the wait for it; None if it is empty.
        average: starts averaging the gradients of a group.
        ahead: whether the next group arrives during the forward pass of a group.
        kept: whether groups stay from the forward to the backward pass.
    """

    node: PlannedNode
    group_of: Sequence[int]
    own: int
    gather: Callable[[int], Callable[[], object] | None]
    average: Callable[[int], None]
    ahead: bool = True
    kept: bool = False
    _arriving: dict[int, Callable[[], object] | None] = field(default_factory=dict, init=False)
    _used: dict[int, None] = field(default_factory=dict, init=False)  # groups, in the order of their use

    def rounds(self, finish: Callable[[], object], shards: int, accumulate: int) -> Iterator[None]:
        """Rounds of one of `shards` nodes with `accumulate` minibatches. finish: waits for all averages."""
        while True:
            self._arriving.clear()
            if accumulate > 1:
                self.forward()
                self.backward(last=False)
                self.node.only_gradients()
                self.node.steps(accumulate - 2, updates=False)
            self.forward()
            self.backward()
            finish()
            self.node.update(1 / shards)
            yield

    def forward(self) -> None:
        following = range(self.own if self.ahead else 0)
        self._used = {}
        self._gather(self.own, *following[:1])
        for number in self.node.forward():
            group = self.group_of[number]
            if group != self.own and group not in self._used:
                self._gather(group, *following[group + 1 : group + 2])
                self._used[group] = None

    def backward(self, *, last: bool = True) -> None:
        """The backward pass. last: whether gradients are averaged after it."""
        queue, missing = [*reversed(self._used)], Counter(self.group_of)
        place = {group: number for number, group in enumerate(queue)}
        if not self.kept:
            self._arriving.clear()
        self._gather(*queue[:2])
        for number in self.node.backward():
            group = self.group_of[number]
            missing[group] -= 1
            if not missing[group]:
                if last:
                    self.average(group)
                if group in place:
                    self._gather(*queue[place[group] + 1 : place[group] + 3])

    def _gather(self, *groups: int) -> None:
        """Wait for the first of `groups`, and start to gather the second."""
        for place, group in enumerate(groups):
            if group not in self._arriving:
                self._arriving[group] = self.gather(group)
            wait = self._arriving[group]
            if not place and wait is not None:
                wait()
                self._arriving[group] = None


BUCKET_MB = 25.0  # torch's own
_FIRST_BYTES = 2**20  # torch's own, for the first bucket at that size
HALF_BYTES = 2
"""Bytes of a gradient that travels in 16 bits."""


def bucket_capacities(bucket_mb: float = BUCKET_MB) -> Iterator[float]:
    """The capacity in bytes of each gradient bucket in turn."""
    rest = itertools.repeat(bucket_mb * 2**20)
    return itertools.chain([_FIRST_BYTES], rest) if bucket_mb == BUCKET_MB else rest


@dataclass(frozen=True, kw_only=True)
class BucketMessages:
    """Bytes of the all-reduces of a gradient bucket; 0 for none.

    Attributes:
        plain: gradients without factors. left, right: P and Q of PowerSGD. Q leaves after P of all buckets.
    """

    plain: int
    left: int = 0
    right: int = 0


def bucket_averages(
    node: PlannedNode,
    sizes: Sequence[int],
    messages: Callable[[Sequence[int]], BucketMessages],
    accumulate: int,
    bucket_mb: float = BUCKET_MB,
) -> Iterator[None]:
    """Rounds of `node`, each up to the mean gradient in buckets, before the optimizer steps.

    sizes: bytes of each gradient. messages: of a bucket, by the numbers of its gradients. accumulate: minibatches.
    """
    while True:
        node.steps(accumulate - 1, updates=False)
        collections.deque(node.forward(), maxlen=0)
        of_buckets, factors = [], []
        for numbers in planned_buckets(node, sizes, bucket_capacities(bucket_mb)):
            sent = messages(numbers)
            of_buckets.append([node.post("all_reduce", sent.plain)] if sent.plain else [])
            if sent.left:
                factors.append((of_buckets[-1], node.post("all_reduce", sent.left), sent.right))
        for own, left, right in factors:
            node.wait([left])
            own.append(node.post("all_reduce", right))
        if factors:  # PowerSGD awaits one after another, and computes between
            for op in itertools.chain(*of_buckets):
                node.wait([op])
                node.builder.compute(0.0)
        else:
            node.wait(itertools.chain(*of_buckets))
        yield


def averaged_rounds(averages: Rounds, shares: Sequence[int] = ()) -> Rounds:
    """Rounds of mean gradients, after which the optimizer steps.

    shares: bytes of the parameters that each node alone updates and broadcasts; by default all update all.
    """
    whole = max(1, sum(shares))

    def rounds(node: PlannedNode) -> Iterator[None]:
        for _ in averages(node):
            node.update(shares[node.rank] / whole if shares else 1.0)
            # A node without parameters broadcasts one number.
            node.wait([node.post("broadcast", size or 4, [root]) for root, size in enumerate(shares)])
            yield

    return rounds


def dealt_out(sizes: Sequence[int], nodes: int) -> list[list[int]]:
    """The numbers of the parameters that torch deals out to each node, from the values of each parameter."""
    shares: list[list[int]] = [[] for _ in range(nodes)]
    totals = [0] * nodes
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number], reverse=True):
        fewest = totals.index(min(totals))
        shares[fewest].append(number)
        totals[fewest] += sizes[number]
    return shares


def sent_entries(length: int, chunk: int, top: int) -> int:
    """The entries of a flat tensor that a node sends, `top` of each chunk, or all of a shorter last one."""
    whole, rest = divmod(length, chunk)
    return whole * top + min(top, rest)


def place_bytes(chunk: int) -> int:
    """Bytes of the place of an entry in its chunk."""
    return 1 if chunk <= 2**8 else 2


def planned_buckets(node: PlannedNode, sizes: Sequence[int], capacities: Iterator[float]) -> Iterator[list[int]]:
    """The gradient buckets of a backward pass of `node`, each as soon as it is full: numbers of parameters.

    sizes: bytes of each gradient. capacities: of each bucket in turn.
    """
    bucket, size = list[int](), 0
    capacity = next(capacities)
    for number in node.backward():
        bucket.append(number)
        size += sizes[number]
        if size >= capacity:
            yield bucket
            bucket, size, capacity = [], 0, next(capacities)
    if bucket:
        yield bucket
