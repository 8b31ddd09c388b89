"""How nodes share a model that ends in a softmax over very many outputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from istbench.workloads.neuron_groups.groups import NeuronGroup

OverNodes = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes two values over a node's own outputs: the logarithm of the sum of exponentials of every sample [b], and a
number to sum. Returns both over the outputs of all nodes."""


class Exchange(Protocol):
    """What nodes tell each other while they evaluate the model together. Every node calls alike."""

    def gather(self, own: Tensor) -> Tensor:
        """All hidden units [b, units], from this node's `own` [b, own units]."""

    def each(self, mine: Tensor, name: str) -> Tensor:
        """Every node's `mine`, contiguous and of one shape, in the order of ranks; `name` is for error lines."""


HAS_ONE = "amazon670k"
"""The workload of istbench with a wide softmax, for error messages."""


@dataclass(frozen=True)
class TrueOutputs:
    """The true outputs of samples: those of sample s are outputs[offsets[s]:offsets[s + 1]].

    offsets: int64 [b + 1]. outputs: int64. The loss of a sample is the mean negative log-softmax of its true
    outputs, 0 without any. The loss of a minibatch is the mean over its samples.
    """

    offsets: Tensor
    outputs: Tensor


class WideSoftmax(ABC):
    """Cuts a model of hidden units and outputs, where every output sees all units. A node keeps some of each.

    Attributes:
        units, outputs: the two groups. Every parameter has one dimension indexed by units or by outputs, and is cut
            along it. The model has no other parameters and no buffers.
    """

    units: NeuronGroup
    outputs: NeuronGroup

    @abstractmethod
    def part(self, units: int, outputs: range, *, sparse_gradients: bool = False) -> nn.Module:
        """Build a node's part with `units` hidden units and `outputs`, with the parameter names of the model.

        With `sparse_gradients`, parameters of which a minibatch uses few rows have sparse gradients.

        Called under `torch.device("meta")`. The workload's loss of a part costs as much as a node's own step.
        """

    @abstractmethod
    def hidden(self, part: nn.Module, inputs: Any) -> Tensor:
        """The hidden units of `part`, float32 [b, own]."""

    @abstractmethod
    def loss(self, part: nn.Module, hidden: Tensor, targets: Any, over_nodes: OverNodes) -> Tensor:
        """The mean loss over all nodes' outputs, a scalar to call backward on.

        Its gradient reaches the outputs of `part`. For `hidden` [b, units], it is the share of these outputs alone.
        Every node calls `over_nodes` once.
        """

    @abstractmethod
    def output_weights(self, part: nn.Module) -> tuple[Tensor, Tensor]:
        """Weight [own outputs, units] and bias [own outputs] of `part`, for methods that compute single outputs."""

    @abstractmethod
    def truth(self, targets: Any) -> TrueOutputs:
        """The true outputs of a minibatch."""

    def cuts(self) -> dict[str, tuple[NeuronGroup, int]]:
        """The group and the dimension along which each parameter is cut."""
        return {slot.tensor: (group, slot.dim) for group in (self.units, self.outputs) for slot in group.slots}
