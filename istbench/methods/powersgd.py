"""PowerSGD: nodes average gradients as low-rank factors (Vogels et al., NeurIPS 2019, arXiv 1905.13727).

A gradient M [n, m] of a node is sent as P [n, r] and Q [m, r]. Each node computes P = M Q with the orthogonalised Q
of the step before. The nodes average P and orthogonalise it, and average Q = M^T P. The mean gradient is then
P Q^T. Each node adds what its own M lost to its next gradient.

torch's hook for DistributedDataParallel does the same, as tests/identities/test_accumulated.py shows. It starts
messages in callbacks: with gloo, on the threads that carry messages, and in no fixed order of buckets. With two
buckets, two nodes then mix them up and abort (torch 2.12). Here all nodes send in one order: P while the backward
pass runs, and Q of all buckets after it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from istbench.base.seeds import derived_seed
from istbench.fabric import Fabric, Pending

RankOf = Callable[[Tensor], int]
"""The rank of the factors of a gradient; 0 sends it as it is."""


class PowerSGD:
    """Averages gradient buckets. It keeps the errors of this node and Q, each a flat tensor for each bucket."""

    def __init__(self, fabric: Fabric, rank_of: RankOf, seed: int) -> None:
        self._fabric, self._rank_of, self._seed = fabric, rank_of, seed
        self._errors: dict[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._under_way: list[Iterator[None]] = []

    def start(self, bucket: GradBucket) -> "Future[Tensor]":
        """Start averaging `bucket` in place. With the last bucket of a step, finish all of them."""
        self._under_way.append(self._stages(str(bucket.index()), bucket.gradients()))
        next(self._under_way[-1])
        if bucket.is_last():
            under_way, self._under_way = self._under_way, []
            for stages in under_way:
                next(stages)
            for stages in under_way:
                next(stages, None)
        # torch reads the values of all futures after the last bucket, so each may be complete now.
        values = bucket.buffer()
        done: Future[Tensor] = Future(devices=[values.device] if values.is_cuda else None)
        done.set_result(values)
        return done

    def _stages(self, index: str, gradients: list[Tensor]) -> Iterator[None]:
        """Average the `gradients` of a bucket in place, in three stages."""
        # Start the all-reduces of the gradients without factors, and of P.
        low = [gradient for gradient in gradients if self._rank_of(gradient)]
        plain = [gradient for gradient in gradients if not self._rank_of(gradient)]
        flat = torch.cat([gradient.reshape(-1) for gradient in plain]) if plain else gradients[0].new_empty(0)
        of_plain = self._all_reduce(flat, index)
        matrices, rights = self._kept(index, low)
        for gradient, matrix, right in zip(low, matrices, rights, strict=True):
            matrix.add_(gradient.reshape(matrix.shape))
            right.copy_(orthogonal(right))
        pairs = list(zip(matrices, rights, strict=True))
        factors = torch.cat([(matrix @ right).reshape(-1) for matrix, right in pairs]) if low else flat.new_empty(0)
        lefts = _views(factors, [torch.Size((len(matrix), right.shape[1])) for matrix, right in pairs])
        of_left = self._all_reduce(factors, index)
        yield
        # Wait for P, and start the all-reduce of Q.
        of_right = None
        if of_left is not None:
            of_left.wait()
            for matrix, left, right in zip(matrices, lefts, rights, strict=True):
                left.copy_(orthogonal(left))
                torch.mm(matrix.t(), left, out=right)
            of_right = self._all_reduce(self._factors[index], index)
        yield
        # Wait for the rest, replace the gradients by their means, and keep the errors.
        if of_plain is not None:
            of_plain.wait()
            for gradient, mean in zip(plain, _views(flat, [gradient.shape for gradient in plain]), strict=True):
                gradient.copy_(mean)
        if of_right is not None:
            of_right.wait()
            for gradient, matrix, left, right in zip(low, matrices, lefts, rights, strict=True):
                mean = left @ right.t()
                matrix.sub_(mean)
                gradient.copy_(mean.view(gradient.shape))

    def _all_reduce(self, values: Tensor, index: str) -> Pending | None:
        return self._fabric.start_mean(values, f"gradient bucket {index}") if len(values) else None

    def _kept(self, index: str, low: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The errors and Q of a bucket, as matrices; zeros and random values that all nodes share at first."""
        if not low:
            return [], []
        matrices = [torch.Size((len(gradient), gradient.numel() // len(gradient))) for gradient in low]
        factors = [torch.Size((shape[1], self._rank_of(own))) for shape, own in zip(matrices, low, strict=True)]
        if index not in self._errors:
            generator = torch.Generator().manual_seed(derived_seed(self._seed, "powersgd", index))
            count = sum(shape.numel() for shape in factors)
            self._errors[index] = low[0].new_zeros(sum(shape.numel() for shape in matrices))
            self._factors[index] = torch.randn(count, generator=generator).to(low[0])
        return _views(self._errors[index], matrices), _views(self._factors[index], factors)

    def state_dict(self) -> dict[str, Any]:
        return {"errors": dict(self._errors), "factors": dict(self._factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Copies: a tensor of a file may begin at any byte, and products of such a tensor round in another way.
        self._errors, self._factors = (
            {index: values.to(self._fabric.device, copy=True) for index, values in state[name].items()}
            for name in ("errors", "factors")
        )


def orthogonal(columns: Tensor) -> Tensor:
    """Orthonormal columns that span `columns` [n, r], of which n is at least r."""
    found: Tensor = torch.linalg.qr(columns).Q
    return found


def _views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Consecutive parts of `flat` in these shapes."""
    parts = flat.split([shape.numel() for shape in shapes]) if shapes else ()
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
