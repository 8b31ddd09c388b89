"""A workload that computes its loss by the run's options: in mixed precision, channels last, compiled.

Every method gets it in place of the workload, so that all methods compute alike. Weights, gradients and optimizer
state stay in float32. Evaluations use these weights in float32, without compiling.

A fixed factor scales the loss of fp16, so that small gradients do not become zero. A hook scales every gradient
back as soon as it is computed. A scale that follows overflows (torch.amp.GradScaler) must see all gradients before
an update, but `p3` and `parameter_server` send them earlier; and all ranks would have to agree on it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from istbench.base.errors import UserError, printable
from istbench.base.options.run import Precision
from istbench.workloads.base import Batch, Workload
from istbench.workloads.memory_order import make_narrow_norms_contiguous
from istbench.workloads.wide_softmax import OverNodes, WideSoftmax

LOSS_SCALE = 2.0**10
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LONGEST_REASON = 200


class Computed:
    """`workload`, with a loss that is computed on `device` with these options.

    Args:
        amp: the type of autocast's forward pass.
        channels_last: store images and their filters with their channels last.
        compiled: compile a model's forward pass, the first time that its loss is computed.
        weight: of this node's gradients in their mean; the loss itself stays.
    """

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        *,
        amp: Precision | None = None,
        channels_last: bool = False,
        compiled: bool = False,
        weight: float = 1.0,
    ) -> None:
        self._workload, self._device, self._weight = workload, device, weight
        self._amp, self._channels_last, self.compiles = amp, channels_last, compiled
        self._forward: tuple[nn.Module, Callable[..., Any]] | None = None
        self._scaled_back: dict[int, weakref.ref[Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "_workload":  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._workload, name)

    def build_model(self) -> nn.Module:
        return self._arranged(self._workload.build_model())

    def own_model(self, seed: int) -> nn.Module | None:
        own = self._workload.own_model(seed)
        return None if own is None else self._arranged(own)

    def _arranged(self, model: nn.Module) -> nn.Module:
        if self._channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            make_narrow_norms_contiguous(model)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        if self._channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self.compiles and model.training:
            model = self._compile(model)
        if self._amp is None:
            loss = self._workload.loss(model, (inputs, targets))
        else:
            with torch.autocast(self._device.type, dtype=HALF[self._amp]):
                loss = self._scaled(self._workload.loss(model, (inputs, targets)).float(), model)
        if self._weight != 1 and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * self._weight)
        return loss

    def wide_softmax(self, model: nn.Module) -> WideSoftmax | None:
        found = self._workload.wide_softmax(model)
        if found is None or self._amp is None:
            return found
        return cast(WideSoftmax, _MixedSoftmax(found, self._device.type, HALF[self._amp], self._scaled))

    def _scaled(self, loss: Tensor, model: nn.Module) -> Tensor:
        """Scale `loss` for fp16, and the gradients of `model` back."""
        if self._amp == "fp16" and loss.requires_grad:
            self._scale_back(model)
            loss.register_hook(lambda gradient: gradient * LOSS_SCALE)
        return loss

    def _scale_back(self, model: nn.Module) -> None:
        """Scale the gradients of `model` back, before anything else reads them."""
        for parameter in model.parameters():
            known = self._scaled_back.get(id(parameter))
            if parameter.requires_grad and (known is None or known() is not parameter):
                handle = parameter.register_hook(lambda gradient: gradient / LOSS_SCALE)
                hooks: Any = parameter._backward_hooks
                hooks.move_to_end(handle.id, last=False)  # the user's own hooks see gradients without the factor
                self._scaled_back[id(parameter)] = weakref.ref(parameter)

    def _compile(self, model: nn.Module) -> nn.Module:
        if self._forward is None or self._forward[0] is not model:
            from torch._inductor import config

            config.compile_threads = 1  # ranks share the cores, and must leave no compiler processes
            self._forward = model, _compiled(model)
        return cast(nn.Module, self._forward[1])


class _MixedSoftmax:
    """A wide softmax in autocast to type `half`."""

    def __init__(
        self, softmax: WideSoftmax, kind: str, half: torch.dtype, scaled: Callable[[Tensor, nn.Module], Tensor]
    ) -> None:
        self._softmax, self._kind, self._half, self._scaled = softmax, kind, half, scaled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._softmax, name)

    def hidden(self, part: nn.Module, inputs: Any) -> Tensor:
        with torch.autocast(self._kind, dtype=self._half):
            return self._softmax.hidden(part, inputs).float()

    def loss(self, part: nn.Module, hidden: Tensor, targets: Any, over_nodes: OverNodes) -> Tensor:
        with torch.autocast(self._kind, dtype=self._half):
            loss = self._softmax.loss(part, hidden, targets, over_nodes).float()
        return self._scaled(loss, part)


def _compiled(model: nn.Module) -> Any:
    if isinstance(model, DistributedDataParallel):
        # Torch compiles the replicated module, cut at the buckets, not the forward pass of DDP itself.
        model.module = torch.compile(model.module, dynamic=False)
        return model
    return torch.compile(model, dynamic=False)


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, torch may compile a model.

    Raises:
        UserError: torch cannot compile it, or finds no working compiler.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)
        reason = printable((str(cause).strip() or type(cause).__name__).splitlines()[0])[:_LONGEST_REASON]
        raise UserError(f"torch cannot compile this model ({reason}); leave out --compile") from None
