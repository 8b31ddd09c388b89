"""Finds neuron groups in the structure of a model: chains of convolutions, linear layers and BatchNorm.

In a chain the output of every module is the only input of the next. So the outputs of a layer are hidden units.
They index the rows of the layer, the entries of the BatchNorm after it, and the columns of the next layer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import nn

from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot

_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d

# Modules that apply the same function to every channel, without mixing channels.
_CHANNEL_WISE = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)


def chain_groups(model: nn.Module, chain: Iterable[nn.Module], *, prefix: str = "") -> list[NeuronGroup]:
    """One group for every layer of `chain` except the last, named `prefix` and hidden1, hidden2, ... in their
    order.

    `chain` holds modules of `model` in the order of the forward pass; an `nn.Sequential` stands for its own
    modules. A flatten between a convolution and a linear layer gives every channel h * w columns.

    Raises:
        ValueError: for a module outside the model, a module without a rule here (such as a grouped convolution), or
            one that does not fit the module before.
    """
    names = {module: name for name, module in model.named_modules()}
    groups: list[NeuronGroup] = []
    units: _Units | None = None
    for module in _leaves(chain):
        if module not in names:
            raise ValueError(f"the chain has a {type(module).__name__} that is not in the model")
        name = names[module]
        if isinstance(module, _Layer):
            _refuse_grouped(module, name)
            if units is not None:
                units.enter(module, name)
                groups.append(NeuronGroup(f"{prefix}hidden{len(groups) + 1}", units.size, tuple(units.slots)))
            units = _Units(module.weight.shape[0], flat=isinstance(module, nn.Linear))
            units.index(module, name, ("weight", "bias"))
        elif isinstance(module, _Norm):
            if units is not None:
                units.index(module, name, ("weight", "bias", "running_mean", "running_var"))
        elif isinstance(module, nn.Flatten):
            if (module.start_dim, module.end_dim) != (1, -1):
                raise ValueError(f"{name} does not flatten all dimensions of a sample: {module}")
            if units is not None:
                units.flat = True
        elif not isinstance(module, _CHANNEL_WISE):
            raise ValueError(f"{name} is a {type(module).__name__}, which may mix channels; leave it out")
    return groups


@dataclass
class _Units:
    """The outputs of the last layer so far: their number, their slots, and whether they are flat vectors."""

    size: int
    flat: bool
    slots: list[Slot] = field(default_factory=list)

    def index(self, module: nn.Module, name: str, parts: tuple[str, ...]) -> None:
        """Note that the units index the first dimension of those `parts` that `module` has."""
        for part in parts:
            tensor = getattr(module, part)
            if tensor is not None:
                self.slots.append(Slot(f"{name}.{part}", 0, self._block(len(tensor), f"{name}.{part}")))

    def enter(self, layer: _Layer, name: str) -> None:
        """Note that the units are the inputs of `layer`."""
        if isinstance(layer, nn.Linear) != self.flat:
            raise ValueError(f"{name} follows {'flat vectors' if self.flat else 'images'}: is a flatten missing?")
        self.slots.append(Slot(f"{name}.weight", 1, self._block(layer.weight.shape[1], f"{name}.weight")))

    def _block(self, length: int, name: str) -> int:
        if length % self.size or (length > self.size and not self.flat):
            raise ValueError(f"{name} has {length} entries for the {self.size} units of the layer before")
        return length // self.size


def _leaves(chain: Iterable[nn.Module]) -> Iterator[nn.Module]:
    for module in chain:
        if isinstance(module, nn.Sequential):
            yield from _leaves(module)
        else:
            yield module


def _refuse_grouped(layer: _Layer, name: str) -> None:
    if getattr(layer, "groups", 1) > 1:
        kind = "depth-wise" if layer.weight.shape[1] == 1 else "grouped"
        raise ValueError(f"{name} is a {kind} convolution; its channels cannot be dealt out one by one")
