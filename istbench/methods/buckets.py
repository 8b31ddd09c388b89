"""The gradient buckets of `ddp`: their option, and their all-reduces in a plan.

torch fills buckets in the order in which a backward pass completes gradients, and sends each as soon as it is full
(Li et al., VLDB 2020).
"""

import collections
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from istbench.base.options.numbers import Count, Mebibytes
from istbench.base.options.tunable import Tunable
from istbench.methods.compressed import BucketMessages, CompressedOptions
from istbench.methods.footprint import PlannedNode, tensor_bytes

DEFAULT_MB = 25.0  # torch's own
_FIRST_BYTES = 2**20  # torch's own, for the first bucket at that size


@dataclass(frozen=True, kw_only=True)
class BucketOptions(CompressedOptions):
    """Options of gradient buckets."""

    bucket_mb: Mebibytes = field(
        default=DEFAULT_MB,
        metadata={"help": "gradient bucket size in MiB; at 25 the first bucket has 1 MiB, as in torch"},
    )
    accumulate: Count = field(
        default=1,
        metadata={
            "help": "minibatches of a node in an optimizer step, with one exchange",
            "tune": Tunable(low=1, high=8, scale="log", costs=True),
        },
    )

    @property
    def capacities(self) -> Iterator[float]:
        """The capacity in bytes of each bucket in turn."""
        rest = itertools.repeat(self.bucket_mb * 2**20)
        return itertools.chain([_FIRST_BYTES], rest) if self.bucket_mb == DEFAULT_MB else rest


def planned_averages(
    node: PlannedNode, parameters: Sequence[nn.Parameter], options: BucketOptions
) -> Iterator[None]:
    """Rounds of `node`, each up to the mean gradient of the trained `parameters`, before the optimizer steps."""
    while True:
        node.steps(options.accumulate - 1, updates=False)
        collections.deque(node.forward(), maxlen=0)
        ops, factors = [], []
        for bucket in _planned_buckets(node, parameters, options.capacities):
            sent = BucketMessages.of(options, bucket)
            if sent.plain:
                ops.append(node.post("all_reduce", sent.plain))
            if sent.left:
                factors.append((node.post("all_reduce", sent.left), sent.right))
        for left, right in factors:
            node.wait([left])
            ops.append(node.post("all_reduce", right))
        node.wait(ops)
        yield


def _planned_buckets(
    node: PlannedNode, parameters: Sequence[nn.Parameter], capacities: Iterator[float]
) -> Iterator[list[nn.Parameter]]:
    """The gradient buckets of a backward pass of `node`, each as soon as it is full."""
    bucket: list[nn.Parameter] = []
    capacity = next(capacities)
    for number in node.backward():
        bucket.append(parameters[number])
        if tensor_bytes(bucket) >= capacity:
            yield bucket
            bucket, capacity = [], next(capacities)
    if bucket:
        yield bucket
