"""What a served model sends, in the trace."""

from collections.abc import Sequence

from istbench.fabric.recorder import Recorder
from istbench.served.slices import Slice


class ServedRecord:
    """Records pushes as their gradients become ready, updates as what follows the pushes they sum, then replies.

    All of it is recorded by the training thread, in an order that is the same on every node: parameter by
    parameter as gradients become ready, and of each the pushes, then updates and replies. Receives are posted
    before the backward pass, because messages are always taken in. Only how long an update took is told by the
    thread that did it.
    """

    def __init__(
        self, recorder: Recorder, slices: Sequence[Sequence[Slice]], itemsize: int, rank: int, world_size: int
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
        """Post every receive of this round; parameters become ready in `ready_order`, as in the last round."""
        if not self._recorder.running:
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
        """The gradient of `parameter` is ready: its pushes start now, its updates and replies when they can.

        `orders` are the priorities of its slices.
        """
        if not self._recorder.running:
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
        """The update of slice `index` took its thread `seconds`. Called on that thread."""
        update = self._updates.pop(index, None)
        if update is not None:
            self._recorder.worked(update, seconds)

    def awaited(self, parameter: int) -> list[int]:
        """The operations that `parameter` needs to be up to date, once."""
        return self._awaited.pop(parameter, [])

    def _post(self, kind: str, slice: Slice, peer: int, priority: int = 0, after: Sequence[int] = ()) -> int:
        size = self._itemsize * (slice.stop - slice.start)
        return self._recorder.post(kind, size, (peer,), priority, after)
