"""A workload whose evaluations use samples held out of its training data, so that the test split stays unread.

Options that were chosen by the test split make its metric too good. `istbench tune` therefore judges trials by such
a validation split. The cell's seed draws it: cells of one seed have the same split, and so the same `DataSource`.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Tensor

from istbench.base.errors import UserError
from istbench.base.options.data_source import DataSource
from istbench.base.seeds import derived_seed
from istbench.workloads.base import Batch, ShowProgress, Workload, opened
from istbench.workloads.contract import wrong_source


def hold_out(workload: Workload, share: float | None, seed: int) -> Workload:
    """`workload`, with `share` of its training samples, drawn by `seed`, in place of its test split.

    Returns `workload` itself for a `share` of None. Call it before `prepare` and `open`.
    """
    if share is None:
        return workload
    workload.without_test = True
    return cast(Workload, _HeldOut(workload, share, seed))


def whole(workload: Workload) -> Workload:
    """The workload behind `hold_out`."""
    return workload.whole if isinstance(workload, _HeldOut) else workload


class _HeldOut:
    """Delegates all but the data to `whole`."""

    def __init__(self, workload: Workload, share: float, seed: int) -> None:
        self.whole = workload
        self._share, self._seed = share, seed
        self._split: tuple[Tensor, Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def prepare(self, data: Path | None, cache: Path, progress: ShowProgress) -> DataSource:
        """Prepare the data, and divide the training samples.

        Raises:
            UserError: as the workload does; and for data that is no samples, or too few.
        """
        source = self.whole.prepare(data, cache, progress)
        if not isinstance(source, DataSource):
            raise wrong_source(self.whole, source)
        if self.whole.in_turn:
            raise UserError(
                f"--held-out: the data of {self.whole.name} yields batches in its own order, which istbench cannot "
                "divide; return a Dataset, or leave --held-out out"
            )
        left, held = self._divided(source.train)
        part = f"{source.fingerprint}/held out {self._share} by {self._seed}"
        return msgspec.structs.replace(
            source,
            train=len(left),
            test=len(held),
            fingerprint=hashlib.sha256(part.encode()).hexdigest(),
            before_split=source,
        )

    def _divided(self, samples: int) -> tuple[Tensor, Tensor]:
        """Indices of the training samples that are left, and of those that are held out."""
        count = max(1, round(self._share * samples))
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "held out"))
        if count < samples:
            left, held = self.whole.divide_training(samples, count, generator)
            if len(left):
                return left, held
        raise UserError(f"--held-out {self._share:g} leaves none of {samples} training samples; hold less out")

    def open(self, source: DataSource) -> None:
        before = source.before_split
        self.whole.open(source if before is None else before)
        self._split = self._divided(self.whole.train_size)

    @property
    def train_size(self) -> int:
        return len(opened(self._split)[0])

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        return self.whole.train_batch(opened(self._split)[0][indices], generator)

    def train_classes(self) -> Tensor | None:
        classes = self.whole.train_classes()
        return None if classes is None else classes[opened(self._split)[0]]

    def test_batches(self) -> Iterator[Batch]:
        for indices in opened(self._split)[1].split(self.whole.evaluated_at_once):
            yield self.whole.plain_batch(indices)
