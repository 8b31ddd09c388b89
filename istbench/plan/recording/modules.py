"""The modules that own the parameters of an optimizer, found among the living objects of this process.

Hooks inside the forward pass would find them too. But torch.compile would compile a hooked model again.
"""

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from istbench.cluster.script_record import RecordedModule

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
# Attributes of wrappers that hold the wrapped model.
_WRAPPED = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """The model behind an optimizer.

    Attributes:
        parameters: in the order of the model, each with its names. buffers: alike.
        modules: with their parents before them. owners: the modules with parameters of their own.
        compiled: whether torch compiled it.
        outside: parameters of the optimizer that no module owns.
    """

    parameters: tuple[tuple[nn.Parameter | Tensor, tuple[str, ...]], ...]
    buffers: tuple[tuple[Tensor, str], ...]
    modules: tuple[RecordedModule, ...]
    owners: tuple[nn.Module, ...]
    compiled: bool
    outside: int


def find_model(optimized: Sequence[Tensor], *, compiled: bool = False) -> FoundModel:
    """The modules behind the parameters `optimized`. Those of several models are modules of one.

    compiled: whether torch has compiled code of theirs that no module shows.
    """
    roots, wrapped = _roots({id(parameter) for parameter in optimized})
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter | Tensor] = {}
    buffers: list[tuple[Tensor, str]] = []
    modules: dict[str, RecordedModule] = {"": RecordedModule(name="")}
    owners: list[nn.Module] = []
    for number, root in enumerate(roots):
        inside = f"{type(root).__name__}{number}" if len(roots) > 1 else ""
        for name, module in root.named_modules():
            path = ".".join(filter(None, [inside, name]))
            modules[path] = RecordedModule(name=path, container=isinstance(module, _CONTAINERS))
            if module._parameters:
                owners.append(module)
        for name, parameter in root.named_parameters(prefix=inside, remove_duplicate=False):
            parameters.setdefault(id(parameter), parameter)
            names.setdefault(id(parameter), []).append(name)
        buffers += [(buffer, name) for name, buffer in root.named_buffers(prefix=inside)]
    outside = [parameter for parameter in optimized if id(parameter) not in parameters]
    for number, tensor in enumerate(outside):
        parameters[id(tensor)] = tensor
        names[id(tensor)] = [f"parameter{number}"]
    return FoundModel(
        parameters=tuple((parameter, tuple(names[key])) for key, parameter in parameters.items()),
        buffers=tuple(buffers),
        modules=tuple(modules.values()),
        owners=tuple(owners),
        compiled=compiled or wrapped,
        outside=len(outside),
    )


def compiled_frames() -> int:
    """Functions that torch has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["ok"])


def _roots(optimized: set[int]) -> tuple[list[nn.Module], bool]:
    """The outermost modules that own `optimized`, those of most of them first, and whether one is compiled."""
    # An `isinstance` would ask lazy objects of other packages for their class, and load them.
    alive = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    alive = [module for module in alive if "_modules" in vars(module) and "_parameters" in vars(module)]
    inside = {id(child) for module in alive for child in module._modules.values()}
    wrappers = [module for module in alive if id(module) not in inside]
    outermost = [_unwrapped(module) for module in wrappers]
    owned = {id(module): {id(parameter) for parameter in module.parameters()} & optimized for module in outermost}
    chosen: list[nn.Module] = []
    missing = set(optimized)
    for module in sorted(outermost, key=lambda module: len(owned[id(module)]), reverse=True):
        if owned[id(module)] & missing:
            chosen.append(module)
            missing -= owned[id(module)]
    parts = {id(part) for module in chosen for part in module.modules()}
    compiled = any(
        type(module).__name__ == "OptimizedModule" and id(_unwrapped(module)) in parts for module in alive
    ) or any(part._compiled_call_impl is not None for module in chosen for part in module.modules())
    return chosen, compiled


def _unwrapped(module: nn.Module) -> nn.Module:
    inner = module._modules.get(_WRAPPED.get(type(module).__name__, ""))
    return module if inner is None else _unwrapped(inner)
