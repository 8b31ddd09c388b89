"""Sampled softmax: trains the true outputs of a sample and random others, drawn again in each step.

The baseline of Distributed SLIDE (arXiv 2201.12667): the same parts of the model, the same exchange and as many
active outputs, but without hashing. Every output is equally likely. The drawn outputs stand for all that are not
true: on average the sum of exponentials is that of all outputs (Jean et al., ACL 2015).
"""

import numpy as np

from istbench.methods.active_outputs import ActiveOptions, ActiveOutputs
from istbench.methods.slide.shard import OutputShard
from istbench.workloads.base import Workload


class SampledSoftmax(ActiveOutputs):
    """A split model trained by its true outputs and random ones, drawn again in each step."""

    name = "sampled_softmax"
    Options = ActiveOptions

    def _build_shard(self, weight: np.ndarray, bias: np.ndarray, workload: Workload) -> OutputShard:
        return self._shard_of(weight, bias, index=None, random=self._own_share(self._wanted))

    @property
    def _wanted(self) -> int:
        return self.options.active(self._softmax.outputs.size)

    def note(self) -> str:
        outputs = self._softmax.outputs.size
        return f"computes {self._wanted:,} of {outputs:,} outputs for a sample beside its true ones"
