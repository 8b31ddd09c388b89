"""Where in a forward pass each parameter is first used: what has to be there before which module may start."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Usage:
    """Where a model's parameters, by number, are used.

    gates: modules in the order in which the forward pass calls them, with the parameters each must wait for.
    ungated: parameters that belong to no called module.
    """

    gates: tuple[tuple[nn.Module, tuple[int, ...]], ...]
    ungated: tuple[int, ...]

    def order(self) -> list[int]:
        """All parameters, the first used first."""
        gated = (number for _, numbers in self.gates for number in numbers)
        return list(dict.fromkeys([*self.ungated, *gated]))


@contextmanager
def called_modules(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The modules of `model` that a forward pass inside calls, in the order of their first call."""
    called: dict[nn.Module, None] = {}

    def note(module: nn.Module, inputs: object) -> None:
        called.setdefault(module)

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    order: list[nn.Module] = []
    try:
        yield order
    finally:
        for hook in hooks:
            hook.remove()
        order.extend(called)


def usage(model: nn.Module, called: Sequence[nn.Module], numbers: Mapping[nn.Parameter, int]) -> Usage:
    """How `model` uses the parameters in `numbers`, given the modules that its forward pass calls.

    A parameter is waited for by the module that owns it. Some modules use a child's parameters without calling
    the child (torch's multi-head attention does); those are waited for by the nearest module above that is called.
    """
    by_name = dict(model.named_modules(remove_duplicate=False))
    needed: dict[nn.Module, dict[int, None]] = {module: {} for module in called}
    ungated: dict[int, None] = {}
    for name, module in by_name.items():
        own = [numbers[p] for p in module.parameters(recurse=False) if p in numbers]
        gate = next((by_name[above] for above in _upwards(name) if by_name[above] in needed), None)
        (ungated if gate is None else needed[gate]).update(dict.fromkeys(own))
    gates = tuple((module, tuple(own)) for module, own in needed.items() if own)
    return Usage(gates, tuple(ungated))


def _upwards(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
