"""The server half of a node: it takes in gradients of its slices from all nodes and sends new values back."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from istbench.fabric import Fabric
from istbench.fabric.transport import payload_of
from istbench.methods.optimizer import is_plain_sgd, load_optimizer_state, optimizer_state, set_rate
from istbench.methods.served.memory import DirectMemory
from istbench.methods.served.messages import ServedRecord
from istbench.methods.served.slices import SendOrder, SlicedParameters


class Build(Protocol):
    """Makes an optimizer over tensors that are flat parts of the parameter `part_of`."""

    def __call__(self, parameters: list[Tensor], *, part_of: Tensor) -> torch.optim.Optimizer: ...


class SliceServer:
    """Takes in the gradients of this node's slices, updates a slice when it is complete, and sends its values.

    Attributes:
        optimizer: updates the slices, and knows whose gradients are missing.

    Args:
        reply: sends the values of a slice to peers; empty if they did not change.
        updated: records that slice `index` of this node's own model has its new values; returns whether its
            parameter is then complete.
    """

    def __init__(
        self,
        parameters: SlicedParameters,
        fabric: Fabric,
        build: Build,
        memory: DirectMemory,
        record: ServedRecord,
        order: SendOrder,
        *,
        reply: Callable[[Sequence[int], int, memoryview], None],
        updated: Callable[[int], bool],
    ) -> None:
        self._rank = fabric.rank
        self._transport, self._memory, self._record, self._order = fabric.transport, memory, record, order
        self._reply, self._updated = reply, updated
        self._peers = [peer for peer in range(fabric.world_size) if peer != fabric.rank]
        self._slices = {slice.index: slice for slice in parameters.all if slice.server == fabric.rank}
        values = {index: parameters.part(slice) for index, slice in self._slices.items()}
        optimizers = {
            index: build([values[index]], part_of=parameters.tensors[slice.parameter])
            for index, slice in self._slices.items()
        }
        self.optimizer = SliceOptimizer(values, optimizers, fabric.rank, fabric.world_size)
        self._incoming = {
            (peer, index): memory.empty(slice) for peer in self._peers for index, slice in self._slices.items()
        }
        self._buffers = {key: payload_of(gradient) for key, gradient in self._incoming.items()}
        self._outgoing = {index: payload_of(memory.part(slice)) for index, slice in self._slices.items()}
        # The thread of an update waits for it on a GPU, so CPU time would be too little there.
        self._stopwatch = time.thread_time if fabric.device.type == "cpu" else time.perf_counter

    def buffer(self, peer: int, index: int) -> memoryview:
        """The memory that takes in the gradient of slice `index` from `peer`."""
        return self._buffers[peer, index]

    def arrived(self, peer: int, index: int, size: int) -> None:
        """Take in the gradient of slice `index` from `peer`, `size` bytes in `buffer`; 0 if it has none.

        Call it under the transport's lock.
        """
        self._contribute(index, peer, self._incoming[peer, index] if size else None)

    def contribute(self, index: int, gradient: Tensor | None, rate: float) -> None:
        """Take in this node's own gradient of slice `index`, and the learning rate of its next update.

        Call it under the transport's lock. No update runs without this gradient, and the next gradient comes only
        after that update.
        """
        self.optimizer.set_rate(index, rate)
        self._contribute(index, self._rank, gradient)

    def _contribute(self, index: int, rank: int, gradient: Tensor | None) -> None:
        if self.optimizer.contribute(index, rank, gradient):
            self._transport.work([(self._order.of(index), partial(self._serve, index))])

    def _serve(self, index: int) -> None:
        """Update slice `index` and send its new values. Runs on the transport's own thread."""
        started = self._stopwatch()
        changed = self._memory.update(self._slices[index], partial(self.optimizer.update, index))
        payload = self._outgoing[index] if changed else memoryview(b"")
        self._reply(self._peers, index, payload)
        self._record.updated(index, self._stopwatch() - started)
        with self._transport.lock:
            if self._updated(index):
                self._transport.notify()


class SliceOptimizer:
    """Collects the gradients of the slices that one node serves and updates their values.

    When every node has contributed to a slice, an update uses the mean of the gradients, added up in rank order. A
    node without a gradient in this step contributes None. If no node has a gradient, the slice does not change.
    Only this node has the optimizer state of these slices.

    Not thread-safe: only one thread at a time may contribute, and only one may update a slice.

    Args:
        values: flat views of the model's values, by the index of their slice.
        optimizers: of each of them.
        rank: of this node. Its own gradients stay as they are: where gradients of two tensors have the same values,
            autograd gives them the same memory, and may still read the other. Those of other nodes are overwritten.
    """

    def __init__(
        self, values: dict[int, Tensor], optimizers: dict[int, torch.optim.Optimizer], rank: int, world_size: int
    ) -> None:
        self._values, self._optimizers, self._rank = values, optimizers, rank
        self._plain = {index for index, optimizer in optimizers.items() if is_plain_sgd(optimizer)}
        self._world_size = world_size
        self._gradients: dict[int, dict[int, Tensor | None]] = {index: {} for index in values}

    def set_rate(self, index: int, rate: float) -> None:
        set_rate(self._optimizers[index], rate)

    def contribute(self, index: int, rank: int, gradient: Tensor | None) -> bool:
        """Take the gradient of slice `index` from node `rank`; returns whether all nodes have contributed."""
        gradients = self._gradients[index]
        gradients[rank] = gradient
        return len(gradients) == self._world_size

    def missing(self, index: int) -> set[int]:
        return set(range(self._world_size)) - self._gradients[index].keys()

    def update(self, index: int) -> bool:
        """Update slice `index` from all contributions; returns whether its values changed."""
        gradients, value = self._gradients[index], self._values[index]
        own = gradients[self._rank]
        present = [gradient for _, gradient in sorted(gradients.items()) if gradient is not None]
        gradients.clear()
        if not present:
            return False
        mean, *others = (gradient.to(value.device, non_blocking=True) for gradient in present)
        for other in others:
            mean = torch.add(mean, other, out=other if mean is own else mean)
        if self._world_size > 1:
            mean = mean.div(self._world_size) if mean is own else mean.div_(self._world_size)
        optimizer = self._optimizers[index]
        if index in self._plain:  # torch's step of a slice spends two thirds of its time outside of kernels
            value.add_(mean, alpha=-optimizer.param_groups[0]["lr"])
        else:
            value.grad = mean
            optimizer.step()
            value.grad = None
        return True

    def state_dict(self) -> dict[str, object]:
        return {str(index): optimizer_state(optimizer) for index, optimizer in self._optimizers.items()}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        for index, optimizer in self._optimizers.items():
            load_optimizer_state(optimizer, state[str(index)])
