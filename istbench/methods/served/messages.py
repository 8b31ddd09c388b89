"""The slices of a served model, and their messages in a trace and in a plan. Needs no torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from istbench.methods.planned_node import PlannedNode


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of parameter number `parameter`, updated by node `server`.

    index: of this slice in the whole model, in the order of parameters.
    """

    index: int
    parameter: int
    start: int
    stop: int
    server: int


def cut(sizes: Sequence[int], slice_params: int, world_size: int, *, split_params: int = 0) -> list[list[Slice]]:
    """The slices of each parameter, given the parameters' numbers of elements.

    A slice has at most `slice_params` elements of one parameter. With `slice_params` 0, parameters stay whole. If
    `split_params` is not 0, parameters of more elements are then cut in equal parts, one for each node. One counter
    across the whole model deals slices to the nodes, so that no node gets the surplus slice of every parameter.
    """
    slices: list[list[Slice]] = []
    count = 0
    for parameter, size in enumerate(sizes):
        split = not slice_params and 0 < split_params < size
        starts = range(0, size, -(-size // world_size) if split else slice_params or max(1, size))
        slices.append(
            [
                Slice(
                    index=count + k,
                    parameter=parameter,
                    start=start,
                    stop=min(start + starts.step, size),
                    server=(count + k) % world_size,
                )
                for k, start in enumerate(starts)
            ]
        )
        count += len(starts)
    return slices


def most_slices(sizes: Sequence[int], slice_params: int, world_size: int, *, split_params: int = 0) -> int:
    """At least as many slices as `cut` makes, without making them: a large model has too many to list."""
    parts = world_size if split_params and not slice_params else 1
    return sum(max(parts, -(-size // (slice_params or size or 1))) for size in sizes)


class OpRecorder(Protocol):
    """The part of `istbench.fabric.recorder.Recorder` that a served model needs; a planned node has it too."""

    @property
    def finished(self) -> bool: ...
    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int: ...
    def worked(self, op: int, seconds: float) -> None: ...


class ServedRecord:
    """Records pushes when their gradients become ready, then the updates with the sums, then the replies.

    The training thread records all of them, in the same order on every node. For each parameter, as its gradient
    becomes ready, it records the pushes, then updates and replies. It posts receives before the backward pass,
    because messages may arrive at any time. Only the duration of an update comes from the thread that ran it.
    """

    def __init__(
        self, recorder: OpRecorder, slices: Sequence[Sequence[Slice]], itemsize: int, rank: int, world_size: int
    ) -> None:
        self._recorder = recorder
        self._slices = slices
        self._itemsize = itemsize
        self._rank = rank
        self._peers = [peer for peer in range(world_size) if peer != rank]
        self._pushes_in: dict[int, list[int]] = {}
        self._updates: dict[int, int] = {}
        self._awaited: dict[int, list[int]] = {}

    def backward_starts(self, ready_order: Sequence[int]) -> None:
        """Post every receive of this round. Parameters become ready in `ready_order`, that of the last round."""
        if self._recorder.finished:
            return
        for parameter in ready_order:
            self._awaited[parameter] = []
            for peer in self._peers:
                for slice in self._slices[parameter]:
                    if slice.server == self._rank:
                        op = self._post("receive", slice, peer)
                        self._pushes_in.setdefault(slice.index, []).append(op)
                self._awaited[parameter] += [
                    self._post("receive", slice, peer) for slice in self._slices[parameter] if slice.server == peer
                ]

    def pushed(self, parameter: int, orders: Sequence[int]) -> None:
        """Record that the gradient of `parameter` is ready. Its pushes start now, its updates and replies later.

        orders: the priorities of its slices.
        """
        if self._recorder.finished:
            return
        slices = self._slices[parameter]
        for peer in self._peers:
            for slice, order in zip(slices, orders, strict=True):
                if slice.server == peer:
                    self._post("send", slice, peer, order)
        for slice, order in zip(slices, orders, strict=True):
            if slice.server == self._rank:
                update = self._recorder.post("work", 0, (), order, self._pushes_in.pop(slice.index, ()))
                self._updates[slice.index] = update
                self._awaited.setdefault(parameter, []).append(update)
                for peer in self._peers:
                    self._post("send", slice, peer, order, (update,))

    def updated(self, index: int, seconds: float) -> None:
        """Record the `seconds` of the update of slice `index`. Call it on the thread that ran the update."""
        update = self._updates.pop(index, None)
        if update is not None:
            self._recorder.worked(update, seconds)

    def awaited(self, parameter: int) -> list[int]:
        """Return the operations for which `parameter` waits, each only once."""
        return self._awaited.pop(parameter, [])

    def _post(self, kind: str, slice: Slice, peer: int, priority: int = 0, after: Sequence[int] = ()) -> int:
        size = self._itemsize * (slice.stop - slice.start)
        return self._recorder.post(kind, size, (peer,), priority, after)


def served_rounds(
    slices: Sequence[Sequence[Slice]], itemsize: int, priority: bool
) -> Callable[[PlannedNode], Iterator[None]]:
    """The rounds of a node whose parameters have these `slices`."""

    def rounds(node: PlannedNode) -> Iterator[None]:
        record = ServedRecord(node, slices, itemsize, node.rank, node.world_size)
        ready = [number for number, _ in node.cost.ready]
        places: dict[int, int] = {}
        for number, _ in node.cost.uses:
            for slice in slices[number]:
                places[slice.index] = len(places) if priority else 0
        values = sum(slice.stop - slice.start for one in slices for slice in one)
        while True:
            for number in node.forward():
                node.wait(record.awaited(number))
            record.backward_starts(ready)
            for number in node.backward():
                record.pushed(number, [places[slice.index] for slice in slices[number]])
                for slice in slices[number]:
                    if slice.server == node.rank:
                        record.updated(slice.index, node.update_seconds((slice.stop - slice.start) / values))
            node.update(0.0)
            yield

    return rounds
