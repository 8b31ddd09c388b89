"""A model that all nodes train together. Every node is a worker, and the server of some slices."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.fabric.transport import TransportMessage
from istbench.methods.model_state import load_model_state, model_state
from istbench.methods.served.memory import DirectMemory, StagedMemory
from istbench.methods.served.messages import ServedRecord
from istbench.methods.served.server import Build, SliceServer
from istbench.methods.served.slices import SendOrder, SlicedParameters, joined_slots, part_of_slots
from istbench.methods.served.usage import Usage, usage, watched
from istbench.methods.served.worker import Worker

_NAMES_TOLD = 4


class ServedModel:
    """`model`, trained by all nodes together; each node updates the slices that it serves.

    A training step is a forward pass inside `forward`, then `backward`. The worker pushes the gradient of a slice
    to its server when the gradient is ready. The server replies with new values, which go into the model. The first
    forward pass records the parameters that each module uses. Later forward passes wait for these, module by
    module. In a step, new values may overwrite a parameter as soon as all nodes have sent its gradient. So no code
    may read a parameter after the backward pass has computed its gradient.

    This class connects both halves to the transport and passes messages in both directions.

    Args:
        build: an optimizer over some tensors, which updates each element by itself.
        slice_params, split_params: the sizes of slices; see `cut`.
        priority: send and update slices in the order of their use in the forward pass; otherwise as they become
            ready.
        window: slices in a connection's buffer; more urgent slices cannot overtake them.
    """

    def __init__(
        self,
        model: nn.Module,
        fabric: Fabric,
        build: Build,
        *,
        slice_params: int,
        split_params: int,
        priority: bool,
        window: int,
    ) -> None:
        self.model = model
        self._transport, self._window = fabric.transport, window
        self._usage: Usage | None = None
        self._training = False  # whether a forward pass of `forward` runs
        parameters = SlicedParameters(model, slice_params, split_params, fabric.world_size)
        self._parameters = parameters
        self._order = SendOrder(len(parameters.all), priority=priority)
        memory = DirectMemory if fabric.device.type == "cpu" else StagedMemory
        self._memory = memory(parameters.flat, self._transport)
        # Slices are too small to share: with two threads a step of p3 with Adam took 135 ms on one node, not 60.
        self._transport.work([(-1, partial(torch.set_num_threads, 1))])
        fabric.recorder.window = window if priority else None
        record = ServedRecord(
            fabric.recorder, parameters.slices, parameters.itemsize, fabric.rank, fabric.world_size
        )
        self._server = SliceServer(
            parameters, fabric, build, self._memory, record, self._order,
            reply=self._send_values, updated=lambda index: self._worker.arrived(index),
        )  # fmt: skip
        self._worker = Worker(
            parameters, fabric, self._memory, record, self._order, self._server, push=self._send_gradients
        )
        # Last: messages of other nodes arrive from here on.
        largest = max(1, parameters.largest_slice) * parameters.itemsize
        self._channel = self._transport.open(self, window_bytes=window * largest if priority else None)

    def forward(self, loss: Callable[[], Tensor]) -> Tensor:
        """Run the forward pass `loss()`."""
        if self._usage is not None:
            self._worker.wait(self._usage.ungated)
            self._training = True
            try:
                return loss()
            finally:
                self._training = False
        with watched(self.model) as seen:
            value = loss()
        numbers = {parameter: number for number, parameter in enumerate(self._parameters.tensors)}
        self._follow(usage(self.model, seen, numbers))
        return value

    def _follow(self, seen: Usage) -> None:
        """After the first forward pass: from now on modules wait, and priorities follow the order of use."""
        self._usage = seen
        for module, numbers in seen.gates:
            module.register_forward_pre_hook(_wait_hook(self, numbers), prepend=True)  # other hooks may read
        self._order.follow(slice.index for number in seen.order() for slice in self._parameters.slices[number])

    def wait(self, numbers: Sequence[int]) -> None:
        """Wait for the new values of the parameters `numbers`, before a module reads them.

        The record keeps the waits of the next training step: an evaluation calls the same modules, and takes none.
        """
        self._worker.wait(numbers, recorded=self._training)

    def backward(self, loss: Tensor, rate: float, *, push: bool = True) -> None:
        """Compute gradients, and push each when it is ready; without `push`, keep them and add to them later.

        rate: the learning rate of their update.
        """
        if push:
            self._worker.backward(loss, rate)
        else:
            loss.backward()

    def drain(self) -> None:
        """Wait until the model and the server of this node are up to date.

        The trace has no wait here: a run without this evaluation would wait in its next forward pass.
        """
        self._worker.wait(range(len(self._parameters)), recorded=False)

    def describe(self) -> str:
        """A line on the slices of this model and the order in which its parameters are sent."""
        text = f"{len(self._parameters.all):,} slices of at most {self._parameters.largest_slice:,} parameters"
        if not self._order.priority:
            return f"{text}, in the order of readiness"
        names = [self._parameters.names[number] for number in self._usage.order()] if self._usage else []
        more = ", ..." if len(names) > _NAMES_TOLD else ""
        return f"{text}, window {self._window}, most urgent first: {', '.join(names[:_NAMES_TOLD])}{more}"

    def state_dict(self) -> dict[str, Any]:
        """The model, and the optimizer state of the slices that this node serves."""
        self.drain()
        return {"model": model_state(self.model), "served": self._server.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drain()
        load_model_state(self.model, state["model"])
        self._memory.reload()
        self._server.optimizer.load_state_dict(state["served"])

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        """The state of node `rank` of this group, from those of a group of another size: `Reshards.resharded`."""
        served = {index: kept for state in states for index, kept in state["served"].items()}
        old, state = self._parameters.cut_for(len(states)), dict[str, Any]()
        for before, now in zip(old, self._parameters.slices, strict=True):
            mine = [slice for slice in now if slice.server == rank]
            if mine:
                whole = joined_slots([served[str(slice.index)] for slice in before])
                state |= {str(slice.index): part_of_slots(whole, slice) for slice in mine}
        return {**states[0], "served": state}

    # Messages. The key of a gradient is twice the index of its slice; the key of new values is one more.

    def buffer(self, peer: int, key: int) -> memoryview:
        """The memory that takes in message `key` of `peer`. Called on the transport's threads."""
        index, is_reply = divmod(key, 2)
        return self._worker.buffer(index) if is_reply else self._server.buffer(peer, index)

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """Take in message `key` of `peer`. Called on the transport's threads, under its lock."""
        index, is_reply = divmod(key, 2)
        if is_reply:
            return self._worker.arrived(index)
        self._server.arrived(peer, index, size)
        return False

    def _send_gradients(self, server: int, payloads: Sequence[tuple[int, memoryview]]) -> None:
        self._transport.send(
            server,
            [
                TransportMessage(self._channel, self._order.of(index), 2 * index, payload)
                for index, payload in payloads
            ],
        )

    def _send_values(self, peers: Sequence[int], index: int, payload: memoryview) -> None:
        message = TransportMessage(self._channel, self._order.of(index), 2 * index + 1, payload)
        for peer in peers:
            self._transport.send(peer, [message])


def _wait_hook(served: ServedModel, numbers: tuple[int, ...]) -> Callable[[nn.Module, Any], None]:
    # A plain function: copying a model copies the objects to which its hooks are bound.
    return lambda module, inputs: served.wait(numbers)
