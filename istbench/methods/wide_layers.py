"""Plain SGD of wide linear layers inside the backward pass, on a CPU.

The gradient of a wide layer is as large as its weight, and new memory in every step: the system clears its pages,
the backward pass writes it, and the update reads it once. Here the product that computes the gradient adds to the
weight, so there is no gradient: a step of a subnet of 512 to 4,096 units takes .77 to .86 of the time. Both ways
differ by the rounding of the update.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from istbench.methods.optimizer import ClippedOptions, is_plain_sgd
from istbench.workloads.base import Workload

WIDE = 2**20
"""Values of a weight, 4 MB. Smaller gradients stay in a core's cache."""


def updates_wide_layers(optimizer: torch.optim.Optimizer, options: ClippedOptions, workload: Workload) -> bool:
    """Whether local steps are plain SGD of `options`, on the gradients of torch's uncompiled functions."""
    return is_plain_sgd(optimizer) and not (options.clip or workload.optimizer or workload.compiles)


def wide_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of `model` (on a CPU or the meta device) that `WideLayers` may update in the backward pass."""
    return [weight for weight in model.parameters() if weight.requires_grad and _is_wide(weight)]


class WideLayers(TorchFunctionMode):
    """The wide linear layers of `model`, which `optimizer` updates by plain SGD.

    Compute the loss inside this context, then call `backward` in place of that of the loss. It updates each weight
    that the loss has used once, as that of a linear layer, and leaves it without a gradient. All others get their
    gradients, for the step of the optimizer.

    Args:
        plain: whether to update weights in the backward pass at all (`updates_wide_layers`).
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, plain: bool) -> None:
        super().__init__()
        self._optimizer = optimizer
        # By the id of a weight, the place of its group in a list that loading a state fills anew.
        self._groups: dict[int, int] = {}
        self._uses = Counter[int]()
        self._updating = False
        if plain and not any(map(is_compiled, model.modules())):
            self._groups = {
                id(weight): place
                for place, group in enumerate(optimizer.param_groups)
                for weight in group["params"]
                if _is_wide(weight)
            }

    def __enter__(self) -> Any:
        self._uses.clear()
        return super().__enter__() if self._groups else self

    def __exit__(self, *error: Any) -> None:
        if self._groups:
            super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        used = [id(value) for value in tree_leaves((args, named)) if id(value) in self._groups]
        self._uses.update(used)
        is_layer = func is F.linear and len(args) > 1 and used == [id(args[1])]
        if not is_layer or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or _saves_by_hooks():
            return func(*args, **named)
        return _Linear.apply(*args[:2], args[2] if len(args) > 2 else named.get("bias"), self)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`, and update wide layers at the rates of the optimizer."""
        self._updating = True
        try:
            loss.backward()
        finally:
            self._updating = False

    def rate(self, weight: Tensor) -> float | None:
        """The rate at which the backward pass updates `weight`; None if it has to return a gradient."""
        hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks
        once = self._uses[id(weight)] == 1 and weight.grad is None and not hooks
        if not self._updating or not once:
            return None
        rate: float = self._optimizer.param_groups[self._groups[id(weight)]]["lr"]
        return rate


class _Linear(torch.autograd.Function):
    """`F.linear`, with gradients by the same products."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, layers: WideLayers) -> Tensor:
        return F.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        samples, weight, _, layers = inputs
        ctx.save_for_backward(samples, weight)
        ctx.weight, ctx.layers = weight, layers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        samples, weight = ctx.saved_tensors
        (gradient,) = gradients
        rows, columns = (values.reshape(-1, values.shape[-1]) for values in (gradient, samples))
        of_samples, of_weight, of_bias = ctx.needs_input_grad[:3]
        before = gradient @ weight if of_samples else None
        own = ctx.weight
        rate = ctx.layers.rate(own) if of_weight and not torch.is_grad_enabled() else None
        product = None
        if rate is not None:
            values = own.detach()
            torch.addmm(values, rows.t(), columns, alpha=-rate, out=values)
        elif of_weight:
            product = rows.t() @ columns
        return before, product, rows.sum(0) if of_bias else None, None


def _is_wide(weight: Tensor) -> bool:
    wide = weight.dim() == 2 and weight.numel() >= WIDE and weight.is_contiguous()
    return (
        wide and type(weight) is nn.Parameter and weight.is_floating_point() and (weight.is_cpu or weight.is_meta)
    )


def _saves_by_hooks() -> bool:
    """Whether hooks save the tensors of the forward pass, as a checkpoint's do. They expect those of `F.linear`."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("istbench looks whether there are hooks"):
            return False
    except RuntimeError:
        return True


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile made `module`, or compiled its calls."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None
