"""The gradient buckets of `ddp`: their options, their form on their way, and their all-reduces in a plan.

torch fills buckets in the order in which a backward pass completes gradients, and sends each as soon as it is full
(Li et al., VLDB 2020). Gradients travel as they are, in 16 bits, or as the low-rank factors of PowerSGD. In 16 bits
they are averaged as by torch's hooks `bf16_compress_hook` and `fp16_compress_hook`, through the fabric.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Mebibytes, Natural, Rate
from istbench.base.options.options import option
from istbench.base.options.tunable import ACCUMULATED
from istbench.fabric import Fabric
from istbench.fabric.pending import MeanInTurns
from istbench.methods.footprint import tensor_bytes
from istbench.methods.optimizer import ClippedOptions
from istbench.methods.planned_node import BUCKET_MB, HALF_BYTES, BucketMessages, Rounds, bucket_averages
from istbench.methods.powersgd import PowerSGD

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_RANK, _LEAST = 4, 2.0


@dataclass(frozen=True, kw_only=True)
class BucketOptions(ClippedOptions):
    compress: Literal["none", "bf16", "fp16", "powersgd"] = option(
        "none", "form of sent gradients: as they are, 16 bits, low-rank factors"
    )
    rank: Count = option(_RANK, "rank of the factors, with powersgd")
    start_compress: Natural = option(0, "local steps without compression at the start, with powersgd")
    least_compression: Rate = option(_LEAST, "powersgd compresses a gradient that shrinks by more than this factor")
    bucket_mb: Mebibytes = option(
        BUCKET_MB, "gradient bucket size in MiB; at 25 the first bucket has 1 MiB, as in torch"
    )
    accumulate: Count = option(1, "minibatches of a node in an optimizer step, with one exchange", tune=ACCUMULATED)

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {"rank": _RANK, "start_compress": 0, "least_compression": _LEAST}
        for name, default in own.items():
            if self.compress != "powersgd" and getattr(self, name) != default:
                raise UserError(f"{name} is an option of compress=powersgd, not of {self.compress}; leave it out")

    def rank_of(self, gradient: Tensor) -> int:
        """The rank of the factors that stand for `gradient`, with its first dimension as rows; 0 for none.

        As in torch's hook.
        """
        if self.compress != "powersgd" or gradient.dim() < 2 or not gradient.numel():
            return 0
        rows = len(gradient)
        columns = gradient.numel() // rows
        rank = min(rows, columns, self.rank)
        return rank if (rows + columns) * rank * self.least_compression < rows * columns else 0

    def messages(self, gradients: Iterable[Tensor]) -> BucketMessages:
        """The messages of a bucket of `gradients`."""
        plain = left = right = 0
        for gradient in gradients:
            size, rank = gradient.element_size(), self.rank_of(gradient)
            if rank:
                left += size * rank * len(gradient)
                right += size * rank * (gradient.numel() // len(gradient))
            else:
                plain += gradient.numel() * (HALF_BYTES if self.compress in _HALF else size)
        return BucketMessages(plain=plain, left=left, right=right)


def compression_buffers(options: BucketOptions, gradients: Sequence[Tensor]) -> int:
    """Bytes that a node needs to compress `gradients`, beside them."""
    if options.compress == "none":
        return 0
    sent = options.messages(gradients)
    return sent.plain + sent.left + sent.right + tensor_bytes(own for own in gradients if options.rank_of(own))


class Averages:
    """Averages gradient buckets over nodes.

    Attributes:
        compressing: whether it compresses the next buckets. powersgd: None if the options compress in another way.
    """

    def __init__(self, fabric: Fabric, options: BucketOptions, seed: int) -> None:
        self._fabric, self._half = fabric, _HALF.get(options.compress)
        self.powersgd = PowerSGD(fabric, options.rank_of, seed) if options.compress == "powersgd" else None
        self.compressing = False
        self._in_turns: list[MeanInTurns] = []
        self._halves: list[tuple[Tensor, Tensor]] = []  # gradients on their way in 16 bits, and where they go

    def start(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # torch reads the types of its hook
        """Start averaging `bucket` in place; the future yields it."""
        values, name = bucket.buffer(), f"gradient bucket {bucket.index()}"
        if self.compressing and self.powersgd is not None:
            return self.powersgd.start(bucket)
        if self._fabric.far:
            return self._start_in_turns(values, name)
        if self.compressing and self._half is not None:
            half = self._fabric.all_reduce_mean_async(values.to(self._half), name)
            return half.then(lambda done: values.copy_(done.value()))
        return self._fabric.all_reduce_mean_async(values, name)

    def _start_in_turns(self, values: Tensor, name: str) -> "Future[Tensor]":
        """Start the same between distant nodes. The values are means after `finish` only, in the same memory."""
        sent = values
        if self.compressing and self._half is not None:
            sent = values.to(self._half)
            self._halves.append((sent, values))
        self._in_turns.append(self._fabric.mean_in_turns(sent, name))
        started: Future[Tensor] = Future()
        started.set_result(values)
        return started

    def finish(self) -> None:
        """Wait for the means of distant nodes."""
        under_way, self._in_turns = self._in_turns, []
        halves, self._halves = self._halves, []
        self._fabric.finish_means(*under_way)
        for half, values in halves:
            values.copy_(half)


def planned_averages(parameters: Sequence[nn.Parameter], options: BucketOptions) -> Rounds:
    """Rounds of a node, each up to the mean gradient of the trained `parameters`, before the optimizer steps."""
    return partial(
        bucket_averages,
        sizes=[tensor_bytes([parameter]) for parameter in parameters],
        messages=lambda numbers: options.messages(parameters[number] for number in numbers),
        accumulate=options.accumulate,
        bucket_mb=options.bucket_mb,
    )
