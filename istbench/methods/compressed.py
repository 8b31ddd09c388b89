"""Gradients of `ddp` on their way: as they are, in 16 bits, or as the low-rank factors of PowerSGD.

In 16 bits they are averaged as by torch's hooks `bf16_compress_hook` and `fp16_compress_hook`, through the fabric.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Natural, Rate
from istbench.fabric import Fabric
from istbench.methods.footprint import tensor_bytes
from istbench.methods.optimizer import ClippedOptions
from istbench.methods.powersgd import PowerSGD

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HALF_BYTES = 2
_RANK, _LEAST = 4, 2.0


@dataclass(frozen=True, kw_only=True)
class CompressedOptions(ClippedOptions):
    """Options of a method that averages gradients in buckets."""

    compress: Literal["none", "bf16", "fp16", "powersgd"] = field(
        default="none",
        metadata={"help": "form of sent gradients: as they are, 16 bits, low-rank factors"},
    )
    rank: Count = field(default=_RANK, metadata={"help": "rank of the factors, with powersgd"})
    start_compress: Natural = field(
        default=0, metadata={"help": "local steps without compression at the start, with powersgd"}
    )
    least_compression: Rate = field(
        default=_LEAST,
        metadata={"help": "powersgd compresses a gradient that shrinks by more than this factor"},
    )

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


@dataclass(frozen=True, kw_only=True)
class BucketMessages:
    """Bytes of the all-reduces of a gradient bucket; 0 for none.

    Attributes:
        plain: gradients without factors. left, right: P and Q of PowerSGD. Q leaves after P of all buckets.
    """

    plain: int
    left: int = 0
    right: int = 0

    @classmethod
    def of(cls, options: CompressedOptions, gradients: Iterable[Tensor]) -> "BucketMessages":
        """The messages of a bucket of `gradients`."""
        plain = left = right = 0
        for gradient in gradients:
            size, rank = gradient.element_size(), options.rank_of(gradient)
            if rank:
                left += size * rank * len(gradient)
                right += size * rank * (gradient.numel() // len(gradient))
            else:
                plain += gradient.numel() * (_HALF_BYTES if options.compress in _HALF else size)
        return cls(plain=plain, left=left, right=right)


def compression_buffers(options: CompressedOptions, gradients: Sequence[Tensor]) -> int:
    """Bytes that a node needs to compress `gradients`, beside them."""
    if options.compress == "none":
        return 0
    sent = BucketMessages.of(options, gradients)
    return sent.plain + sent.left + sent.right + tensor_bytes(own for own in gradients if options.rank_of(own))


class Averages:
    """Averages gradient buckets over nodes.

    Attributes:
        compressing: whether it compresses the next buckets.
    """

    def __init__(self, fabric: Fabric, options: CompressedOptions, seed: int) -> None:
        self._fabric, self._half = fabric, _HALF.get(options.compress)
        self._powersgd = PowerSGD(fabric, options.rank_of, seed) if options.compress == "powersgd" else None
        self.compressing = False

    def start(self, bucket: GradBucket) -> "Future[Tensor]":
        """Start averaging `bucket` in place; the future yields it."""
        values, name = bucket.buffer(), f"gradient bucket {bucket.index()}"
        if self.compressing and self._powersgd is not None:
            return self._powersgd.start(bucket)
        if self.compressing and self._half is not None:
            half = self._fabric.all_reduce_mean_async(values.to(self._half), name)
            return half.then(lambda done: values.copy_(done.value()))
        return self._fabric.all_reduce_mean_async(values, name)

    def state_dict(self) -> dict[str, Any]:
        """What PowerSGD keeps between steps; empty without it."""
        return {} if self._powersgd is None else self._powersgd.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict` of the same rank."""
        if self._powersgd is not None:
            self._powersgd.load_state_dict(state)
