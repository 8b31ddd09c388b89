"""The workload contract: a model, its data, its metric and its targets.

A workload knows methods only by name (for defaults), and no processes. The launcher builds it once, and `prepare`
finds or makes the data. Every worker builds it again, and `open` maps the prepared data.

Order of calls: the launcher calls `build_model`, `prepare` and `build_model` again, and reads `targets`. If
`sized_by_data`, it calls `expect` first. A worker calls `open` before everything else. `istbench plan` calls
`expect`, `build_model` and `meta_batch`. So `build_model` must work before `prepare` and `open`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.data_source import DataSource
from istbench.workloads.parts import (
    Batch,
    Block,
    Cuttable,
    Fetched,
    Plannable,
    Progress,
    ReadInBlocks,
    Sampled,
    UsersObjects,
)

__all__ = [
    "NARROW",
    "WIDEN",
    "WIDENED",
    "Batch",
    "Block",
    "Progress",
    "Workload",
    "check_widened",
    "divided",
    "opened",
]

Split = TypeVar("Split")


# Help of options of workloads that can widen the layers whose units `ist` deals.
WIDEN = "inner units of the layers in widened, as a multiple"
WIDENED = "layers that widen applies to: those of deal=late in ist, or all that it can deal"
NARROW = "divides the units of all layers that ist can deal: on that many nodes, the width of a subnet"


def check_widened(widen: int, widened: str) -> None:
    """Refuse `widened` beside a `widen` of 1, where it names another cell with the same model.

    Raises:
        UserError: for another `widened` than the default.
    """
    if widen == 1 and widened != "late":
        raise UserError(f"widened={widened} has no effect without widen; set widen=2 or more, or leave it out")


class Workload(Fetched, Plannable, Cuttable, ReadInBlocks, Sampled, UsersObjects, ABC):
    """A model, its data, its loss and its metric.

    A workload must have the eight functions below, `name`, `Options`, and the metric. All else has a default, here
    or in one of the optional parts (istbench/workloads/parts.py).

    name: its name on the command line.
    Options: a frozen dataclass of workload options, all with defaults; their types have bounds, and each field's
        `metadata["help"]` is shown to users.
    metric: name of the metric for the targets. lower_is_better: its direction: an accuracy rises, a loss falls.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    metric: ClassVar[str] = "accuracy"
    lower_is_better: ClassVar[bool] = False

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model. Called under `torch.device("meta")`: it allocates nothing."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Forward pass and mean loss of one batch, a scalar to call backward on."""

    @property
    @abstractmethod
    def train_size(self) -> int:
        """Number of training samples; available after `open`."""

    @abstractmethod
    def prepare(self, data: Path | None, cache: Path, progress: Progress) -> DataSource:
        """Find the data in directory `data` or in `cache`, or make it; store it under `cache`, ready to map.

        Only the launcher calls this, before any worker starts.

        Raises:
            UserError: for a missing or empty directory, one in the wrong layout, or a broken file.
        """

    @abstractmethod
    def open(self, source: DataSource) -> None:
        """Map the prepared data. Cheap; every worker calls it before the batch methods."""

    @abstractmethod
    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Training samples `indices` (int64 [b]) as CPU tensors; `generator` is the randomness of augmentation."""

    @abstractmethod
    def test_batches(self) -> Iterator[Batch]:
        """The whole test split in order, in batches of the workload's choice."""

    @abstractmethod
    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """Metrics of `model` (in eval mode) over `batches`, among them `self.metric`.

        `<metric>_standard_error` may be among them. Reports then say which targets it cannot tell apart.
        """

    unit: str = ""
    """Unit of the metric, for readers, such as "nats a token"; empty for a share or a count."""

    targets: tuple[float, ...] = ()
    """Levels of the metric for time to accuracy, any finite numbers. They may depend on the data; `prepare` sets
    them. Without targets, the report uses levels near the best run's metric for real data."""

    batch_size: ClassVar[int] = 128
    """Default minibatch of one node."""

    epochs: ClassVar[float] = 10
    """Default length of a run, in passes over the training data by all nodes together."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def place(self, function: Literal["model", "data"]) -> str:
        """The place of the user's code that makes the model or the data, for errors; empty for code of istbench."""
        return "" if type(self).__module__.partition(".")[0] == "istbench" else self.in_errors

    def method_defaults(self, method: str) -> dict[str, Any]:
        """Default option values for the method of that name; options that it lacks are ignored."""
        return {}


def divided(units: int, times: int) -> int:
    """The most units that one of `times` nodes gets of `units`."""
    return -(-units // times)


def opened(split: Split | None) -> Split:
    """`split`; raises if the workload is not open."""
    if split is None:
        raise RuntimeError("open the workload before using its data")
    return split
