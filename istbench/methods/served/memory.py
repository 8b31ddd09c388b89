"""The host memory from which the transport sends a model's values and gradients: the model itself, or copies."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from istbench.fabric.transport import Transport
from istbench.methods.served.messages import Slice


class DirectMemory:
    """For a model in host memory: the transport reads and writes its tensors.

    Attributes:
        values: flat host tensors of all parameters; the transport sends and receives new values there.
    """

    def __init__(self, parameters: Sequence[Tensor], transport: Transport) -> None:
        self.values = list(parameters)

    def part(self, slice: Slice) -> Tensor:
        return self.values[slice.parameter][slice.start : slice.stop]

    def empty(self, slice: Slice) -> Tensor:
        """A host buffer for a gradient of `slice`."""
        return torch.empty_like(self.part(slice))

    def fetch(self, number: int, gradient: Tensor, then: Callable[[Tensor], None]) -> None:
        """Call `then` with the flat `gradient` of parameter `number` in host memory, after it is computed."""
        then(gradient)

    def update(self, slice: Slice, update: Callable[[], bool]) -> bool:
        """Run `update`, which changes `slice` of the model or returns false; copy a change into `values`."""
        return update()

    def publish(self, number: int) -> None:
        """Copy `values` of parameter `number` into the model."""

    def reload(self) -> None:
        """Copy the values of the model into `values`, after other code changed them."""


class StagedMemory(DirectMemory):
    """For a model on a GPU: tensors go through pinned host memory.

    The copy of a gradient waits for the kernels that compute it. Updates run on a stream of their own, beside the
    backward pass.
    """

    def __init__(self, parameters: Sequence[Tensor], transport: Transport) -> None:
        self._parameters = list(parameters)
        super().__init__([self._host(parameter) for parameter in parameters], transport)
        self._gradients = [torch.empty_like(value, pin_memory=value.is_pinned()) for value in self.values]
        self._fetcher = transport.worker("fetch gradients")
        self._stream = torch.cuda.Stream(parameters[0].device) if self._on_gpu else None

    @property
    def _on_gpu(self) -> bool:
        return bool(self._parameters) and self._parameters[0].is_cuda

    def _host(self, parameter: Tensor) -> Tensor:
        return torch.empty_like(parameter, device="cpu", pin_memory=parameter.is_cuda).copy_(parameter)

    def empty(self, slice: Slice) -> Tensor:
        return torch.empty_like(super().empty(slice), pin_memory=self._on_gpu)

    def fetch(self, number: int, gradient: Tensor, then: Callable[[Tensor], None]) -> None:
        if self._stream is not None:  # an update may still read the gradient when Python frees it
            gradient.record_stream(self._stream)
        host = self._gradients[number].copy_(gradient, non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if self._on_gpu else None
        self._fetcher.put([(0, partial(_after, copied, then, host))])

    def update(self, slice: Slice, update: Callable[[], bool]) -> bool:
        part = self._parameters[slice.parameter][slice.start : slice.stop]
        with torch.cuda.stream(self._stream):
            changed = update()
            if changed:
                self.part(slice).copy_(part, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        return changed

    def publish(self, number: int) -> None:
        self._parameters[number].copy_(self.values[number], non_blocking=True)

    def reload(self) -> None:
        for value, parameter in zip(self.values, self._parameters, strict=True):
            value.copy_(parameter)


def _after(copied: torch.cuda.Event | None, then: Callable[[Tensor], None], host: Tensor) -> None:
    if copied is not None:
        copied.synchronize()
    then(host)
