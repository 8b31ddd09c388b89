"""How nodes share a model that ends in a softmax over very many outputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from istbench.subnets.groups import NeuronGroup

OverNodes = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Called with what a node knows of its own outputs: of every sample the logarithm of the sum of exponentials [b],
and a number to be added up. Returns both over the outputs of all nodes."""

HAVE_ONE = ("amazon670k",)
"""Workloads of ours with a wide softmax, for who asks another one for it."""


@dataclass(frozen=True)
class TrueOutputs:
    """The true outputs of samples: those of sample s are outputs[offsets[s]:offsets[s + 1]].

    offsets: int64 [b + 1]. outputs: int64. The loss of a sample is the mean over its true outputs of minus the
    log-softmax, 0 where it has none; that of a minibatch is the mean over all its samples.
    """

    offsets: Tensor
    outputs: Tensor


class WideSoftmax(ABC):
    """A model of hidden units, and of outputs that each see all of them. Both are cut: a node keeps some of each.

    Attributes:
        units, outputs: the two, as groups: every parameter is indexed by the one or by the other along one
            dimension, by single indices, and cut along it. The model has no other parameters, and no buffers.
    """

    units: NeuronGroup
    outputs: NeuronGroup

    @abstractmethod
    def part(self, units: int, outputs: range, *, sparse_gradients: bool = False) -> nn.Module:
        """What a node keeps, with `units` hidden units and those outputs, its parameters named as the model's.

        With `sparse_gradients`, those of parameters of which a minibatch uses few rows are sparse tensors.

        Called under `torch.device("meta")`. The workload's loss of it takes what a node's own step takes.
        """

    @abstractmethod
    def hidden(self, part: nn.Module, inputs: Any) -> Tensor:
        """The hidden units of `part`, float32 [b, own]."""

    @abstractmethod
    def loss(self, part: nn.Module, hidden: Tensor, targets: Any, over_nodes: OverNodes) -> Tensor:
        """The mean loss over all nodes' outputs, a scalar to call backward on.

        Its gradient reaches the outputs of `part`, and of `hidden` [b, units] what those alone add to it.
        `over_nodes` is called once, on every node alike.
        """

    @abstractmethod
    def output_weights(self, part: nn.Module) -> tuple[Tensor, Tensor]:
        """Weight [own outputs, units] and bias [own outputs] of `part`, for who computes outputs one by one."""

    @abstractmethod
    def truth(self, targets: Any) -> TrueOutputs:
        """The true outputs of a minibatch."""

    def cuts(self) -> dict[str, tuple[NeuronGroup, int]]:
        """Of every parameter the group that it is cut by, and the dimension."""
        return {slot.tensor: (group, slot.dim) for group in (self.units, self.outputs) for slot in group.slots}
