"""The training samples of each node, a pure function of (seed, step, rank): checkpoints need no state of it.

If the number of nodes changes, it is also one of `Begin`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from istbench.base.errors import UserError
from istbench.base.seeds import derived_seed


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Where a group of nodes begins: its first local step, and the samples that all nodes together took before.

    samples: over all epochs. epoch, sample: the current epoch, and the samples of it.
    """

    step: int = 0
    samples: int = 0
    epoch: int = 0
    sample: int = 0


_START = Begin()


class ShardedBatches:
    """One shared shuffle per epoch, cut into minibatches: node k takes the k-th of every n.

    The n minibatches of a step together equal one minibatch of a process with an n times larger batch. An epoch
    leaves out the samples after its last whole step; another shuffle leaves out others.

    samples: of each node in a step, by rank, together n times `batch_size`; by default they are equal.

    With `in_turn`, the data has an order of its own. The nodes take its minibatches in turn, to the end of the data
    and from its beginning again.

    A group of nodes of another size goes on behind the sample at which the one before it stopped.

    Args:
        begin: where the group begins; by default at local step 0, with the first sample.

    Raises:
        UserError: if the samples fill no step.
    """

    def __init__(
        self,
        train_size: int,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        seed: int,
        in_turn: bool = False,
        samples: Sequence[int] = (),
        begin: Begin = _START,
    ) -> None:
        self.steps_per_epoch = train_size // (batch_size * world_size)
        if not self.steps_per_epoch:
            raise UserError(
                f"the open data has {train_size} training samples, less than a step of {batch_size} on "
                f"{world_size} nodes: the workload's train_size must equal the number that prepare returned"
            )
        self._train_size, self._batch_size, self._seed = train_size, batch_size, seed
        self._rank = rank
        self._step_samples = batch_size * world_size
        self._first = sum(samples[:rank]) if samples else batch_size * rank
        self._own = samples[rank] if samples else batch_size
        self._batches = train_size // batch_size if in_turn else 0
        self._begin = begin
        self._left = (train_size - begin.sample) // self._step_samples  # steps of the first epoch
        self._epoch = -1
        self._shuffle = torch.empty(0, dtype=torch.int64)

    def indices(self, step: int) -> Tensor:
        """Training samples of this node in `step`, counted from 0 over all epochs: int64 [samples]."""
        if self._batches:
            first = self._pass_and_batch(step)[1] * self._batch_size
            return torch.arange(first, first + self._batch_size)
        epoch, sample = self.place(step)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derived_seed(self._seed, "shuffle", epoch))
            self._shuffle = torch.randperm(self._train_size, generator=generator)
            self._epoch = epoch
        start = sample + self._first
        return self._shuffle[start : start + self._own]

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of `step`, and the samples of it that all nodes together took before."""
        if (done := step - self._begin.step) < self._left:
            return self._begin.epoch, self._begin.sample + done * self._step_samples
        epochs, within = divmod(done - self._left, self.steps_per_epoch)
        return self._begin.epoch + 1 + epochs, within * self._step_samples

    def samples(self, step: int) -> int:
        """The samples that all nodes together took before `step`, over all epochs."""
        return self._begin.samples + (step - self._begin.step) * self._step_samples

    def end(self, step: int) -> Begin:
        """Where a group goes on that takes over from this one at `step`."""
        epoch, sample = self.place(step)
        return Begin(step=step, samples=self.samples(step), epoch=epoch, sample=sample)

    def generator(self, step: int) -> torch.Generator:
        """The generator of this node's augmentation in `step`; in turn, that of the pass, equal on all nodes."""
        if self._batches:
            number = self._pass_and_batch(step)[0]
            return torch.Generator().manual_seed(derived_seed(self._seed, "pass", number))
        return torch.Generator().manual_seed(derived_seed(self._seed, "augment", step, self._rank))

    def _pass_and_batch(self, step: int) -> tuple[int, int]:
        return divmod(self.samples(step) // self._batch_size + self._rank, self._batches)
