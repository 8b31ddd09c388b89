"""The worker half of a node: it pushes gradients as they become ready, and waits for new values."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch import Tensor
from torch.autograd.graph import increment_version

from istbench.base.errors import UserError
from istbench.fabric import Fabric
from istbench.fabric.transport import payload_of
from istbench.methods.served.memory import DirectMemory
from istbench.methods.served.messages import ServedRecord, Slice
from istbench.methods.served.server import SliceServer
from istbench.methods.served.slices import SendOrder, SlicedParameters
from istbench.workloads.memory_order import flattened

_OVERWRITTEN = "modified by an inplace operation"


class Worker:
    """Computes gradients and pushes each to the servers of its slices as soon as it is ready; waits for new values.

    Args:
        server: this node's own.
        push: sends gradients of some slices to a peer, in their order; empty without a gradient.
    """

    def __init__(
        self,
        parameters: SlicedParameters,
        fabric: Fabric,
        memory: DirectMemory,
        record: ServedRecord,
        order: SendOrder,
        server: SliceServer,
        *,
        push: Callable[[int, Sequence[tuple[int, memoryview]]], None],
    ) -> None:
        self._parameters, self._fabric = parameters, fabric
        self._memory, self._record, self._order = memory, record, order
        self._server, self._push_slices = server, push
        self._rate = 0.0
        self._pushing = False
        self._pushed: list[int] = []  # parameters of this round, in order
        # Those of the last round; before the first one, the usual order. Only the trace depends on it.
        self._ready_order = list(reversed(range(len(parameters))))
        received = [slice for slice in parameters.all if slice.server != fabric.rank]
        self._buffers = {slice.index: payload_of(memory.part(slice)) for slice in received}
        self._fresh = [True] * len(parameters.all)
        # By parameter: slices whose new values are missing; whether `wait` has returned since the last push; and
        # whether new values are in `memory` but not yet in the model.
        self._missing = [0] * len(parameters)
        self._waited = [True] * len(parameters)
        self._unpublished = [False] * len(parameters)
        for number, parameter in enumerate(parameters.tensors):
            parameter.register_post_accumulate_grad_hook(_ready_hook(self, number))

    def backward(self, loss: Tensor, rate: float) -> None:
        """Compute the gradients of `loss` and push them all; `rate` is the learning rate of their update."""
        self._rate = rate
        # The round does not end with the backward pass: the next forward pass still waits for its replies.
        self._order.next_round()
        self._record.backward_starts(self._ready_order)
        self._pushing = True
        try:
            loss.backward()
        except RuntimeError as error:
            # autograd may be the first to detect that a new value overwrote one that it needs.
            early = [number for number in range(len(self._parameters)) if not self._waited[number]]
            if not early or _OVERWRITTEN not in str(error):
                raise
            raise self._read_early(early[0]) from None
        finally:
            self._pushing = False
        for number in sorted(set(range(len(self._parameters))) - set(self._pushed)):
            self.wait((number,))
            self._push(number)
        self._ready_order, self._pushed = self._pushed, []

    def ready(self, number: int) -> None:
        """Push the gradient of parameter `number`, which is complete. Called by autograd."""
        if self._pushing:
            if not self._waited[number]:
                raise self._read_early(number)
            self._push(number)

    def _read_early(self, number: int) -> UserError:
        return UserError(
            f"{self._parameters.names[number]} was read too early or too late, beside its new values: this step "
            "did not call the module that read it in the first step, or read it by detach(); train this model by "
            "ddp"
        )

    def _push(self, number: int) -> None:
        """Give the gradient of parameter `number`, or the lack of one, to the servers of its slices."""
        parameter, slices = self._parameters.tensors[number], self._parameters.slices[number]
        gradient = None if parameter.grad is None else flattened(parameter.grad, parameter)
        parameter.grad = None
        self._pushed.append(number)
        self._record.pushed(number, [self._order.urgency(slice.index) for slice in slices])
        # From now on the values in the model are old.
        self._unpublished[number], self._waited[number] = True, False
        with self._fabric.transport.lock:
            self._missing[number] = len(slices)
            for slice in slices:
                self._fresh[slice.index] = False
        distribute = partial(self._distribute, number, self._rate, gradient)
        if gradient is None:
            distribute(None)
        else:
            self._memory.fetch(number, gradient, distribute)

    def _distribute(self, number: int, rate: float, gradient: Tensor | None, host: Tensor | None) -> None:
        """Send `host`, a copy of the flat `gradient`, to other servers, and give `gradient` to this node's own."""
        raw = memoryview(b"") if host is None else payload_of(host)
        itemsize = self._parameters.tensors[number].element_size()
        own: list[Slice] = []
        payloads: dict[int, list[tuple[int, memoryview]]] = {}
        for slice in self._parameters.slices[number]:
            if slice.server == self._fabric.rank:
                own.append(slice)
            else:
                payload = raw[itemsize * slice.start : itemsize * slice.stop]
                payloads.setdefault(slice.server, []).append((slice.index, payload))
        for server, batch in payloads.items():
            self._push_slices(server, batch)
        with self._fabric.transport.lock:
            for slice in own:
                part = None if gradient is None else gradient[slice.start : slice.stop]
                self._server.contribute(slice.index, part, rate)

    def buffer(self, index: int) -> memoryview:
        """The memory that takes in the new values of slice `index`."""
        # Without torch's functions, autograd would not see that values which it still needs are overwritten.
        increment_version(self._parameters.tensors[self._parameters.all[index].parameter])
        return self._buffers[index]

    def arrived(self, index: int) -> bool:
        """Slice `index` has its new values; returns whether its parameter is up to date.

        Call it under the transport's lock.
        """
        number = self._parameters.all[index].parameter
        self._fresh[index] = True
        self._missing[number] -= 1
        return self._missing[number] == 0

    def wait(self, numbers: Iterable[int], *, recorded: bool = True) -> None:
        """Return when the parameters `numbers` are up to date in the model.

        recorded: the trace gets the wait. Otherwise the next call that records waits has it.
        """
        for number in numbers:
            ops = self._record.awaited(number) if recorded else ()
            if self._missing[number] or ops:
                with self._fabric.recorder.waiting(*ops):
                    self._wait_for_messages(number)
            self._waited[number] = True
            if self._unpublished[number]:
                self._memory.publish(number)
                self._unpublished[number] = False

    def _wait_for_messages(self, number: int) -> None:
        self._fabric.wait_for_messages(
            lambda: self._missing[number] == 0,
            lambda: self._awaited_peers(number),
            f"waiting for {self._parameters.names[number]}",
        )

    def _awaited_peers(self, number: int) -> set[int]:
        rank, peers = self._fabric.rank, set[int]()
        for slice in self._parameters.slices[number]:
            if not self._fresh[slice.index]:
                peers |= self._server.optimizer.missing(slice.index) if slice.server == rank else {slice.server}
        return peers - {rank}


def _ready_hook(worker: Worker, number: int) -> Callable[[Tensor], None]:
    # A plain function: copying a model copies the objects to which its hooks are bound.
    return lambda parameter: worker.ready(number)
