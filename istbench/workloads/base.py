"""The workload contract: a model, its data, its metric and its targets.

A workload knows nothing of methods beyond their names (for defaults) and nothing of processes: it is built once
in the launching process, where `prepare` finds or makes the data, and once in every worker, where `open` maps
what was prepared.

Order of calls: the launching process calls `build_model`, `prepare` and `build_model` again, and reads `targets`.
Where `sized_by_data`, `expect` comes first. A worker calls `open`, then everything else. `istbench plan` calls
`expect`, `build_model` and `meta_batch`. So `build_model` needs nothing that `prepare` or `open` sets.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from istbench.config.data_source import DataSource
from istbench.errors import UserError
from istbench.subnets.groups import NeuronGroup
from istbench.workloads.initialise import initial_buffer, initial_rows, initializers
from istbench.workloads.wide_softmax import WideSoftmax

Batch = tuple[Any, Any]
"""Inputs and targets of some samples: tensors, or what has a tensor's `to`, `chunk`, `equal`, `shape`, `dim` and
length, such as rows of a sparse matrix (istbench/workloads/extreme_data/points.py)."""

Block = Callable[[str, int, int, int], Tensor]
"""block(name, dim, first, last): entries `first` to `last` (exclusive) along `dim` of a tensor of the model."""

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) while data is being made ready."""


class Workload(ABC):
    """What is trained. Subclasses set the class attributes and fill in the abstract methods.

    name: as typed on the command line.
    Options: a frozen dataclass of workload options, all with defaults; their types have bounds, and each field's
        `metadata["help"]` is shown to users.
    metric: name of the metric that targets refer to; higher is better, 0 to 1.
    targets: the levels reported as time to accuracy; they may depend on the data, and are known once `prepare` was
        called. Where there are none, shares of the best run's metric are reported for real data.
    batch_size: minibatch of one node by default.
    epochs: default length of a run, in passes over the training data by all nodes together.
    sources: what `fetch` can fill the cache from; empty where there is nothing to fetch.
    width: the option that says how wide the model is, for `istbench plan`; empty where there is none.
    batches_ahead: training batches that a thread of their own makes while earlier ones are trained on; 0 where
        making one takes next to no time. `train_batch` is then called by that thread, in the order of steps.
    metrics_are_means: whether all that `evaluate` gives are means over samples, so that nodes on several hosts may
        evaluate a share each.
    evaluates_blocks: whether there is an `evaluate_blocks`. A model with running statistics is assembled anyway.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    metric: ClassVar[str] = "accuracy"
    targets: tuple[float, ...] = ()
    batch_size: ClassVar[int] = 128
    epochs: ClassVar[float] = 10
    sources: ClassVar[tuple[str, ...]] = ()
    width: str = ""
    batches_ahead: ClassVar[int] = 0
    metrics_are_means: ClassVar[bool] = False
    evaluates_blocks: ClassVar[bool] = False
    sized_by_data: ClassVar[bool] = False

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self._rules: dict[str, Any] | None = None

    # Data.

    @property
    @abstractmethod
    def train_size(self) -> int:
        """Number of training samples; known once `open` was called."""

    @abstractmethod
    def prepare(self, data: Path | None, cache: Path, progress: Progress) -> DataSource:
        """Find the data in directory `data`, or in `cache`, or make it; leave it mapped-ready under `cache`.

        Runs in the launching process only, before any worker starts.

        Raises:
            UserError: for a directory that is missing, empty or in the wrong layout, or a file that is broken.
        """

    def computed_bytes(self) -> int:
        """Bytes of data that `open` computes and every process holds; 0 where it is mapped from files."""
        return 0

    def fetch(self, source: str, cache: Path, progress: Progress) -> DataSource:
        """Fill `cache` from `source`, one of `self.sources`, for later runs.

        Raises:
            UserError: where that fails.
        """
        raise NotImplementedError(f"{self.name} has no data to fetch")

    @abstractmethod
    def open(self, source: DataSource) -> None:
        """Map the prepared data. Cheap; called in every worker and before the batch methods."""

    @abstractmethod
    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Training samples `indices` (int64 [b]) as CPU tensors; `generator` seeds any augmentation."""

    def train_classes(self) -> Tensor | None:
        """The class of every training sample (int64 [train_size]), where each is of one; None where not.

        For drawing a small sample with every class in its proportion.
        """
        return None

    @abstractmethod
    def test_batches(self) -> Iterator[Batch]:
        """The whole test split in order, in batches of a size that suits the workload."""

    # Model.

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model. Called under `torch.device("meta")`: allocates nothing."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Forward pass and mean loss of one batch, a scalar to call backward on."""

    def expect(self, data: Path | None, chosen: Collection[str]) -> str:
        """Be what would be trained on the data set in `data`, without preparing it.

        Called before `build_model`: by `istbench plan` in place of `prepare`, ahead of it where `sized_by_data`.

        Args:
            data: None where the user named none.
            chosen: the options that the user named.

        Returns:
            What was taken for granted, in words.

        Raises:
            UserError: for data that is not one of this workload's, or says nothing of the model.
        """
        if data is not None:
            raise UserError(f"{self.name} is planned by its options alone; leave out --data")
        return f"{self.name} as its options alone say, no data looked at"

    def meta_batch(self, samples: int) -> Batch | None:
        """A training batch, for `istbench plan`; None where the loss of one cannot be computed on the meta device.

        Called under `torch.device("meta")`, before any data is open.
        """
        return None

    @abstractmethod
    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """Metrics of `model` (in eval mode) over `batches`; has at least `self.metric`."""

    def evaluate_blocks(self, block: Block, batches: Iterator[Batch]) -> dict[str, float]:
        """What `evaluate` gives, of a model that may fit on no node: `block` reads it, on the device of `batches`.

        A block is fetched from other nodes every time that it is asked for.
        """
        raise NotImplementedError(f"{self.name} is evaluated whole")

    @abstractmethod
    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The hidden-unit groups of `model` for Independent Subnet Training; empty if it has none."""

    def wide_softmax(self, model: nn.Module) -> WideSoftmax | None:
        """How nodes share `model`, where it ends in a softmax over very many outputs; None where it does not."""
        return None

    def method_defaults(self, method: str) -> dict[str, Any]:
        """Option values that suit this workload, for the method of that name; options it lacks are ignored."""
        return {}

    # Initial weights.

    def initial_rows(self, model: nn.Module, name: str, rows: Tensor | None, seed: int) -> Tensor:
        """Initial values of `rows` (indices along dimension 0, None for all) of parameter `name`.

        `model` may be on the meta device. One seed gives one full model whoever asks for which rows.
        """
        if self._rules is None:
            self._rules = initializers(model)
        shape = model.get_parameter(name).shape
        return initial_rows(self._rules[name], shape, name, rows, seed)

    def initial_buffer(self, model: nn.Module, name: str) -> Tensor:
        """Initial value of buffer `name`."""
        return initial_buffer(model, name)


def opened(split: Batch | None) -> Batch:
    """`split`, which a workload has from when it is opened."""
    if split is None:
        raise RuntimeError("open the workload before asking for its data")
    return split
