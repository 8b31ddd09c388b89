"""The messages of a served model in a plan. Needs no torch."""

from collections.abc import Callable, Iterator, Sequence

from istbench.methods.planned_node import PlannedNode
from istbench.methods.served.cut import Slice
from istbench.methods.served.record import ServedRecord


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
