"""How nodes share the network for very many labels: cuts of its hidden units and labels."""

from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import ExtremeNetwork, LabelLayer
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot
from istbench.workloads.wide_softmax import OverNodes, TrueOutputs, WideSoftmax


class ExtremePart(ExtremeNetwork):
    """A node's part of an `ExtremeNetwork`: `units` hidden units, and labels `own`, which see all units."""

    def __init__(
        self, features: int, units: int, hidden: int, own: range, block: int, *, sparse_gradients: bool
    ) -> None:
        super().__init__(features, units, len(own), block)
        self.input.sparse_gradients = sparse_gradients
        self.output = LabelLayer(hidden, len(own), block, own.start)

    def forward(self, points: SparseBatch, labels: SparseBatch | None = None) -> Tensor:
        """Like `ExtremeNetwork.forward`, with zero for all other hidden units, and without other labels."""
        own = self.hidden(points)
        loss: Tensor = self.output(F.pad(own, (0, self.output.in_features - own.shape[1])), labels)
        return loss


class ExtremeSoftmax(WideSoftmax):
    """How nodes share an `ExtremeNetwork`."""

    def __init__(self, model: ExtremeNetwork) -> None:
        self._features, hidden = model.input.weight.shape
        self._block = model.output.block
        self.units = NeuronGroup("hidden", hidden, (Slot("input.weight", 1), Slot("input.bias", 0)))
        slots = (Slot("output.weight", 0), Slot("output.bias", 0))
        self.outputs = NeuronGroup("labels", model.output.out_features, slots)

    def part(self, units: int, outputs: range, *, sparse_gradients: bool = False) -> nn.Module:
        hidden = self.units.size
        return ExtremePart(self._features, units, hidden, outputs, self._block, sparse_gradients=sparse_gradients)

    def hidden(self, part: nn.Module, inputs: Any) -> Tensor:
        return cast(ExtremePart, part).hidden(inputs)

    def loss(self, part: nn.Module, hidden: Tensor, targets: Any, over_nodes: OverNodes) -> Tensor:
        loss: Tensor = cast(ExtremePart, part).output(hidden, targets, over_nodes)
        return loss

    def output_weights(self, part: nn.Module) -> tuple[Tensor, Tensor]:
        output = cast(ExtremePart, part).output
        return output.weight, output.bias

    def truth(self, targets: Any) -> TrueOutputs:
        return TrueOutputs(targets.offsets, targets.indices)
