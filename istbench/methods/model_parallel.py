"""Model parallel training of a wide softmax: each node keeps its own hidden units and its own outputs.

The dense counterpart of Distributed SLIDE (arXiv 2201.12667), which splits a model in the same way. All nodes take
the same minibatch. In a step each node

1. computes its part of the hidden layer, and gathers the parts of the others;
2. computes its own outputs, and gathers the others' sums of exponentials for the softmax, one number a sample;
3. receives the gradient of its own hidden units, summed over the outputs of all nodes;
4. updates its own parameters.

No message grows with the number of outputs.
"""

from typing import Any

from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.cut_model import CutMethod, largest_part, wide_softmax
from istbench.methods.footprint import Footprint
from istbench.methods.model_state import load_model_state, model_state
from istbench.methods.optimizer import OptimizerOptions, load_optimizer_state, optimizer_state, set_rate
from istbench.workloads.base import Batch, Workload


class ModelParallel(CutMethod):
    """One optimizer step on one minibatch, of a model whose hidden units and outputs are split over nodes."""

    name = "model_parallel"
    Options = OptimizerOptions

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._take(model, workload, fabric)
        self._optimizer = self.options.build(self._part.parameters())

    def note(self) -> str:
        return (
            f"of {self._softmax.units.size:,} hidden units and {self._softmax.outputs.size:,} outputs "
            f"node 0 keeps {len(self._units[0]):,} and {len(self._outputs[0]):,}"
        )

    def step(self, batch: Batch) -> Tensor:
        inputs, targets = batch
        self._optimizer.zero_grad()
        own = self._softmax.hidden(self._part, inputs)
        hidden = self._exchange.gather(own.detach()).requires_grad_()
        loss = self._softmax.loss(self._part, hidden, targets, self._exchange.normalise)
        loss.backward()
        assert hidden.grad is not None
        own.backward(self._exchange.scatter(hidden.grad))
        set_rate(self._optimizer, self.learning_rate)
        self._optimizer.step()
        self._fabric.recorder.mark("round")
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {"part": model_state(self._part), "optimizer": optimizer_state(self._optimizer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_model_state(self._part, state["part"])
        load_optimizer_state(self._optimizer, state["optimizer"])

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        softmax = wide_softmax(self.name, model, workload, world_size)
        part, sums = largest_part(softmax, world_size), 4 * (batch_size + 1)
        return self._footprint_of(part, softmax.units.size, batch_size, world_size, normaliser=sums)
