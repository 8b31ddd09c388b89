"""The worker half of a node: gradients go out as they become ready, new values are awaited where they are used."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from istbench.errors import UserError
from istbench.fabric import Fabric
from istbench.fabric.transport import TransportMessage, payload_of
from istbench.memory_order import flattened, memory_format
from istbench.served.memory import DirectMemory, StagedMemory
from istbench.served.record import ServedRecord
from istbench.served.server import SliceServer
from istbench.served.slices import Slice, cut
from istbench.served.usage import Usage, usage, watched

_NAMES_TOLD = 4
_OVERWRITTEN = "modified by an inplace operation"


class ServedModel:
    """`model`, trained by all nodes together, each of which updates the slices it serves.

    A training step is a forward pass inside `forward`, then `backward`. A slice's gradient is pushed to its server
    when it is ready; the server replies with new values, which land in the model. Every forward pass but the first
    waits, module by module, for the parameters that the first one used there. In a step, a parameter's memory is
    written from when all nodes have its gradient: nothing may read it after its own gradient is computed.

    Args:
        slice_params, split_params: how parameters are sliced; see `cut`.
        priority: send and update what the forward pass needs first; otherwise in the order of readiness.
        window: slices that a connection may hold, which cannot be overtaken any more.
        memory: how the transport reaches the tensors; by default as their device needs it.
        build: an optimizer over some tensors. Its update must be one element at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        fabric: Fabric,
        build: Callable[[list[Tensor]], torch.optim.Optimizer],
        *,
        slice_params: int,
        split_params: int,
        priority: bool,
        window: int,
        memory: type[DirectMemory] | None = None,
    ) -> None:
        self.model = model
        self._fabric = fabric
        self._rank = fabric.rank
        self._peers = [peer for peer in range(fabric.world_size) if peer != fabric.rank]
        self._names, self._parameters = _trained(model)
        sizes = [parameter.numel() for parameter in self._parameters]
        self._slices = cut(sizes, slice_params, fabric.world_size, split_params=split_params)
        self._all = [slice for slices in self._slices for slice in slices]
        self._flat = [flattened(parameter.detach(), parameter) for parameter in self._parameters]
        self._priority = priority
        self._window = window
        # An update on a GPU is waited for by its thread.
        self._stopwatch = time.thread_time if fabric.device.type == "cpu" else time.perf_counter
        self._transport = fabric.transport
        kind = memory or (DirectMemory if fabric.device.type == "cpu" else StagedMemory)
        self._memory = kind(self._flat, self._transport)
        itemsize = max((flat.element_size() for flat in self._flat), default=1)
        largest = max((slice.stop - slice.start for slice in self._all), default=1) * itemsize
        own = [slice for slice in self._all if slice.server == self._rank]
        self._server = SliceServer(own, [self._part(slice) for slice in own], build, fabric.world_size)
        self._incoming, self._buffers = self._receive_buffers(own)
        self._outgoing = {slice.index: self._raw_values(slice) for slice in own}
        self._unpublished = [False] * len(self._parameters)
        self._missing = [0] * len(self._parameters)  # slices whose new values are not here yet
        self._waited = [True] * len(self._parameters)  # for the new values, since the last push
        self._fresh = [True] * len(self._all)
        self._place = list(range(len(self._all)))  # of a slice in the order of priority
        self._round = 0
        self._pushed: list[int] = []
        self._pushing = False
        self._ready_order: list[int] = []
        self._usage: Usage | None = None
        # Slices are too small to share: with two threads a step of p3 with Adam took 135 ms on one node, not 60.
        self._transport.work([(-1, partial(torch.set_num_threads, 1))])
        fabric.recorder.window = window if priority else None
        self._record = ServedRecord(fabric.recorder, self._slices, itemsize, self._rank, fabric.world_size)
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(_push_hook(self, number))
        # Last: from here on other nodes' messages arrive.
        self._channel = self._transport.open(self, window_bytes=window * largest if priority else None)

    # Training.

    def forward(self, loss: Callable[[], Tensor]) -> Tensor:
        """`loss()`, a forward pass."""
        if self._usage is not None:
            self._await(self._usage.ungated)
            return loss()
        with watched(self.model) as seen:
            value = loss()
        self._settle(usage(self.model, seen, {p: number for number, p in enumerate(self._parameters)}))
        return value

    def backward(self, loss: Tensor, rate: float, *, push: bool = True) -> None:
        """Compute gradients, and push each when it is ready; with `push` false, keep them to add to.

        rate: the learning rate of the update by them.
        """
        if not push:
            loss.backward()
            return
        self._rate = rate
        # Not at its end: replies of this round are still to be sent while the next forward pass waits for them.
        self._round += 1
        self._record.backward_starts(self._ready_order)
        self._pushing = True
        try:
            loss.backward()
        except RuntimeError as error:
            # autograd may find first that a new value came in after the old one was read.
            passed = [number for number, waited in enumerate(self._waited) if not waited]
            if not passed or _OVERWRITTEN not in str(error):
                raise
            raise self._read_early(passed[0]) from None
        finally:
            self._pushing = False
        for number in sorted(set(range(len(self._parameters))) - set(self._pushed)):
            self._await((number,))
            self._push(number)
        self._ready_order, self._pushed = self._pushed, []

    def drain(self) -> None:
        """Wait until this node's model and server are up to date."""
        self._await(range(len(self._parameters)))

    def _settle(self, seen: Usage) -> None:
        """After the first forward pass: from now on modules wait, and priorities follow the order of use."""
        self._usage = seen
        for module, numbers in seen.gates:
            module.register_forward_pre_hook(_wait_hook(self, numbers), prepend=True)  # other hooks may read
        in_order = (slice.index for number in seen.order() for slice in self._slices[number])
        for place, index in enumerate(in_order):
            self._place[index] = place

    def _await(self, numbers: Iterable[int]) -> None:
        """Wait until the parameters `numbers` are up to date."""
        for number in numbers:
            ops = self._record.awaited(number)
            if self._missing[number] or ops:
                with self._fabric.recorder.waiting(*ops):
                    self._await_one(number)
            self._waited[number] = True
            if self._unpublished[number]:
                self._memory.publish(number)
                self._unpublished[number] = False

    def _await_one(self, number: int) -> None:
        self._fabric.wait_for_messages(
            lambda: self._missing[number] == 0,
            lambda: self._awaited_peers(number),
            f"waiting for {self._names[number]}",
        )

    def _awaited_peers(self, number: int) -> set[int]:
        peers: set[int] = set()
        for slice in self._slices[number]:
            if not self._fresh[slice.index]:
                mine = slice.server == self._rank
                peers |= self._server.missing(slice.index) if mine else {slice.server}
        return peers - {self._rank}

    # Sending.

    def _ready(self, number: int) -> None:
        """Called by autograd when the gradient of parameter `number` is complete."""
        if self._pushing:
            if not self._waited[number]:
                raise self._read_early(number)
            self._push(number)

    def _read_early(self, number: int) -> UserError:
        return UserError(
            f"{self._names[number]} was read before its new values: this step went past the module that "
            "read it in the first step; train this model by ddp"
        )

    def _push(self, number: int) -> None:
        """Hand the gradient of parameter `number`, or that there is none, to the servers of its slices."""
        parameter, slices = self._parameters[number], self._slices[number]
        gradient = None if parameter.grad is None else flattened(parameter.grad, parameter)
        parameter.grad = None
        self._pushed.append(number)
        self._record.pushed(number, [self._urgency(slice.index) for slice in slices])
        self._unpublished[number] = True
        self._waited[number] = False
        with self._transport.lock:
            self._missing[number] = len(slices)
            for slice in slices:
                self._fresh[slice.index] = False
        distribute = partial(self._distribute, number, self._rate, gradient)
        if gradient is None:
            distribute(None)
        else:
            self._memory.fetch(number, gradient, distribute)

    def _distribute(self, number: int, rate: float, gradient: Tensor | None, host: Tensor | None) -> None:
        """Send `host`, which holds the flat `gradient`, to the other servers, and `gradient` to this node's own."""
        raw = memoryview(b"") if host is None else payload_of(host)
        itemsize = self._parameters[number].element_size()
        mine: list[Slice] = []
        messages: dict[int, list[TransportMessage]] = {}
        for slice in self._slices[number]:
            if slice.server == self._rank:
                mine.append(slice)
            else:
                payload = raw[itemsize * slice.start : itemsize * slice.stop]
                message = TransportMessage(self._channel, self._order(slice.index), 2 * slice.index, payload)
                messages.setdefault(slice.server, []).append(message)
        for server, batch in messages.items():
            self._transport.send(server, batch)
        with self._transport.lock:
            for slice in mine:
                part = None if gradient is None else gradient[slice.start : slice.stop]
                # No update is without this node's own gradient, nor its next one before that update.
                self._server.set_rate(slice.index, rate)
                self._contribute(slice.index, self._rank, part)

    def _order(self, index: int) -> int:
        """Every message of an older round goes first: a late node needs it before anything newer."""
        return self._round * len(self._all) + self._urgency(index)

    def _urgency(self, index: int) -> int:
        return self._place[index] if self._priority else 0

    def describe(self) -> str:
        """How this model is sliced and in which order its parameters are sent, in a line."""
        largest = max((slice.stop - slice.start for slice in self._all), default=0)
        text = f"{len(self._all):,} slices of at most {largest:,} parameters"
        if not self._priority:
            return f"{text}, in the order of readiness"
        names = [self._names[number] for number in self._usage.order()] if self._usage else []
        more = ", ..." if len(names) > _NAMES_TOLD else ""
        return f"{text}, window {self._window}, most urgent first: {', '.join(names[:_NAMES_TOLD])}{more}"

    # Serving. On the transport's threads.

    def buffer(self, peer: int, key: int) -> memoryview:
        """Where message `key` of `peer` goes: new values into the model, gradients to the server."""
        return self._buffers[peer, key]

    def arrived(self, peer: int, key: int, size: int) -> bool:
        """A gradient of `peer`, or new values from it. Called under the transport's lock."""
        index, reply = divmod(key, 2)
        if reply:
            return self._refresh(index)
        self._contribute(index, peer, self._incoming[peer, index] if size else None)
        return False

    def _contribute(self, index: int, rank: int, gradient: Tensor | None) -> None:
        if self._server.contribute(index, rank, gradient):
            self._transport.work([(self._order(index), partial(self._serve, index))])

    def _serve(self, index: int) -> None:
        started = self._stopwatch()
        changed = self._memory.update(self._all[index], partial(self._server.update, index))
        payload = self._outgoing[index] if changed else memoryview(b"")
        reply = TransportMessage(self._channel, self._order(index), 2 * index + 1, payload)
        for peer in self._peers:
            self._transport.send(peer, [reply])
        self._record.updated(index, self._stopwatch() - started)
        with self._transport.lock:
            if self._refresh(index):
                self._transport.notify()

    def _refresh(self, index: int) -> bool:
        """Slice `index` has its new values; returns whether its parameter is up to date."""
        number = self._all[index].parameter
        self._fresh[index] = True
        self._missing[number] -= 1
        return self._missing[number] == 0

    # Memory.

    def _part(self, slice: Slice) -> Tensor:
        return self._flat[slice.parameter][slice.start : slice.stop]

    def _raw_values(self, slice: Slice) -> memoryview:
        return payload_of(self._memory.values[slice.parameter][slice.start : slice.stop])

    def _receive_buffers(
        self, own: Sequence[Slice]
    ) -> tuple[dict[tuple[int, int], Tensor], dict[tuple[int, int], memoryview]]:
        """Where gradients of the slices `own` come in, a peer; and the place of every message by peer and key."""
        incoming = {
            (peer, slice.index): torch.empty_like(self._part(slice)) for peer in self._peers for slice in own
        }
        buffers = {(peer, 2 * index): payload_of(buffer) for (peer, index), buffer in incoming.items()}
        for slice in self._all:
            if slice.server != self._rank:
                buffers[slice.server, 2 * slice.index + 1] = self._raw_values(slice)
        return incoming, buffers

    # State.

    def state_dict(self) -> dict[str, Any]:
        """The model, and the optimizer's state of what this node serves."""
        self.drain()
        return {"model": self.model.state_dict(), "served": self._server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.drain()
        self.model.load_state_dict(state["model"])
        self._memory.reload()
        self._server.load_state_dict(state["served"])


def _trained(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for _, parameter in named:
        parameter.data = parameter.data.contiguous(memory_format=memory_format(parameter))
    return [name for name, _ in named], [parameter for _, parameter in named]


# Hooks are plain functions: a copy of a model copies what its hooks are bound to.


def _push_hook(served: ServedModel, number: int) -> Callable[[Tensor], None]:
    return lambda parameter: served._ready(number)


def _wait_hook(served: ServedModel, numbers: tuple[int, ...]) -> Callable[[nn.Module, Any], None]:
    return lambda module, inputs: served._await(numbers)
