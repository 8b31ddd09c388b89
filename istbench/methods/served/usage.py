"""The first use of each parameter in a forward pass: the parameters that each module must wait for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

# Properties of a parameter; they do not read its values.
_PROPERTIES = ("device", "dtype", "grad", "is_cuda", "ndim", "requires_grad", "shape")
_ABOUT = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {
    Tensor.__len__, Tensor.dim, Tensor.is_floating_point, Tensor.numel, Tensor.register_hook, Tensor.size,
}  # fmt: skip


@dataclass(frozen=True)
class Usage:
    """The uses of a model's parameters, by number.

    gates: modules in the order in which the forward pass calls them, with the parameters each must wait for.
    ungated: parameters that belong to no called module, or that code outside any module reads earlier.
    """

    gates: tuple[tuple[nn.Module, tuple[int, ...]], ...]
    ungated: tuple[int, ...]

    def order(self) -> list[int]:
        """All parameters in the order of their first use."""
        gated = (number for _, numbers in self.gates for number in numbers)
        return list(dict.fromkeys([*self.ungated, *gated]))


@dataclass
class ForwardPass:
    """First calls and first reads in a forward pass.

    called: its modules in the order of their first call.
    readers: for each parameter, the innermost running module at its first read, None outside any; and the number of
        modules called before.
    """

    called: dict[nn.Module, None] = field(default_factory=dict)
    readers: dict[nn.Parameter, tuple[nn.Module | None, int]] = field(default_factory=dict)


@contextmanager
def watched(model: nn.Module) -> Iterator[ForwardPass]:
    """Watch the forward pass of `model` inside; the result is complete after it."""
    seen = ForwardPass()
    at_work: list[nn.Module] = []

    def begins(module: nn.Module, inputs: object) -> None:
        seen.called.setdefault(module)
        at_work.append(module)

    def ends(module: nn.Module, inputs: object, outputs: object) -> None:
        at_work.pop()

    class Reads(TorchFunctionMode):
        """Notes every parameter that is an argument of a torch operation."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for value in tree_leaves((args, kwargs)) if func not in _ABOUT else ():
                if isinstance(value, nn.Parameter):
                    seen.readers.setdefault(value, (at_work[-1] if at_work else None, len(seen.called)))
            return func(*args, **(kwargs or {}))

    hooks = [
        hook
        for module in model.modules()
        for hook in (
            module.register_forward_pre_hook(begins, prepend=True),
            module.register_forward_hook(ends, always_call=True),
        )
    ]
    try:
        with Reads():
            yield seen
    finally:
        for hook in hooks:
            hook.remove()


def usage(model: nn.Module, seen: ForwardPass, numbers: Mapping[nn.Parameter, int]) -> Usage:
    """How `model` uses the parameters in `numbers`, from its forward pass.

    The module that owns a parameter waits for it. Some modules use a child's parameters without calling the child
    (torch's multi-head attention does); the nearest called module above then waits. If another module reads a
    parameter before any of these is called, the reader waits too.
    """
    by_name = dict(model.named_modules(remove_duplicate=False))
    needed: dict[nn.Module, dict[int, None]] = {module: {} for module in seen.called}
    ungated: dict[int, None] = {}
    for name, module in by_name.items():
        own = [numbers[p] for p in module.parameters(recurse=False) if p in numbers]
        gate = next((by_name[above] for above in _upwards(name) if by_name[above] in needed), None)
        (ungated if gate is None else needed[gate]).update(dict.fromkeys(own))
    called = list(seen.called)
    for parameter, (reader, calls) in seen.readers.items():
        number = numbers.get(parameter)
        if number is not None and not any(number in needed[module] for module in called[:calls]):
            (ungated if reader is None else needed[reader]).setdefault(number)
    gates = tuple((module, tuple(own)) for module, own in needed.items() if own)
    return Usage(gates, tuple(ungated))


def _upwards(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
