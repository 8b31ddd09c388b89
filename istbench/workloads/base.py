"""The workload contract: a model, its data, its metric and its targets; and the optional parts of a workload.

A workload knows methods only by name (for defaults), and no processes. The launcher builds it once, and `prepare`
finds or makes the data. Every worker builds it again, and `open` maps the prepared data.

Order of calls: the launcher calls `build_model`, `prepare` and `build_model` again, and reads `targets`. If
`sized_by_data`, it calls `expect` first. A worker calls `open` before everything else. `istbench plan` calls
`expect`, `build_model` and `meta_batch`. So `build_model` must work before `prepare` and `open`.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from istbench.base.errors import UserError
from istbench.base.options.data_source import DataSource
from istbench.workloads.initialise import initial_buffer, initial_rows, initializers
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.wide_softmax import Exchange, WideSoftmax

Split = TypeVar("Split")

Batch = tuple[Any, Any]
"""Inputs and targets of some samples: tensors, or objects with a tensor's `to`, `chunk`, `equal`, `shape`, `dim`
and length, such as rows of a sparse matrix (istbench/workloads/extreme_data/points.py)."""

ReadBlock = Callable[[str, int, int, int], Tensor]
"""block(name, dim, first, last): entries `first` to `last` (exclusive) along `dim` of a tensor of the model."""

STORED_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""The types of tensors that checkpoints and files of weights keep, by safetensors' names."""

ShowProgress = Callable[[str, int, int], None]
"""progress(task, done, total), called during the preparation of data."""


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


# Optional parts of a workload: `Workload` has them all, and a class overrides the functions that it needs.


class Part:
    """What a part may use of its workload."""

    name: ClassVar[str]

    @property
    def in_errors(self) -> str:
        """Its name in errors."""
        return f"workload {self.name!r}"


class Fetched(Part):
    """Its data can be downloaded."""

    sources: ClassVar[tuple[str, ...]] = ()
    """The sources that `fetch` accepts; empty if there is nothing to fetch."""

    def fetch(self, source: str, cache: Path, progress: ShowProgress) -> DataSource:
        """Fill `cache` from `source`, one of `self.sources`, for later runs.

        Raises:
            UserError: if that fails.
        """
        raise UserError(
            f"{self.in_errors} has no fetch(source, cache, progress); write it, or leave its sources out"
        )


class Plannable(Part):
    """`istbench plan` knows its model and its step without data."""

    width: str = ""
    """The option with the width of the model; empty if there is none."""

    sized_by_data: ClassVar[bool] = False
    """Whether the data determines the size of the model."""

    def expect(self, data: Path | None, chosen: Collection[str]) -> str:
        """Set the sizes of the model for the data set in `data`, without preparing the data.

        Called before `build_model`: by `istbench plan` in place of `prepare`, and before `prepare` if
        `sized_by_data`.

        Args:
            data: a directory, or None.
            chosen: names of the options that the user set.

        Returns:
            The assumptions, as text.

        Raises:
            UserError: for data of another workload, or data that does not determine the model.
        """
        if data is not None:
            raise UserError(f"{self.name} is planned from its options only; leave out --data")
        return f"{self.name} from its options only, without data"

    def meta_batch(self, samples: int) -> Batch | None:
        """A training batch for `istbench plan`; None if the loss does not work on the meta device.

        Called under `torch.device("meta")`, before any data is open.
        """
        return None

    def computed_bytes(self) -> int:
        """Bytes of data that every process computes and holds; 0 if `open` maps files."""
        return 0


class Cuttable(Part):
    """Methods may cut its model: by groups of hidden units, or along a wide softmax."""

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The groups of hidden units of `model` for Independent Subnet Training; empty if it has none."""
        return []

    def prove_groups(self, groups: Sequence[NeuronGroup]) -> str:
        """Prove `groups`, whose places fit the model, by runs of it; returns a line if no proof is possible.

        Only groups of a task file need it: `istbench check` and tests prove those of other workloads.

        Raises:
            UserError: if another order of the units of a group changes the result.
        """
        return ""

    def prove_silence(self, groups: Sequence[NeuronGroup]) -> None:
        """Check that units of `groups` may be zero, as those in flight are in `streaming_ist`.

        Only groups of a task file need it.

        Raises:
            UserError: if the result is not finite then.
        """
        return

    def narrowed(self, times: int) -> dict[str, Any]:
        """The options that divide the units of every group by `times`, rounded up; the others stay as they are.

        That is the width of a subnet of `times` nodes. `istbench compare --controls` trains other methods at it.

        Raises:
            UserError: if no options do so.
        """
        raise UserError(f"{self.in_errors} has no option that makes its model narrower")

    def wide_softmax(self, model: nn.Module) -> WideSoftmax | None:
        """How nodes share a `model` that ends in a softmax over very many outputs; None for other models."""
        return None

    evaluates_parts: ClassVar[bool] = False
    """Whether `evaluate_part` is implemented, and `evaluate_blocks` too. Otherwise one node evaluates the model."""

    def evaluate_part(self, part: nn.Module, nodes: Exchange, batches: Iterator[Batch]) -> dict[str, float]:
        """The metrics of `evaluate`, for a model that nodes share by `wide_softmax`; `part` is this node's part.

        Every node calls it with the same batches. The result of rank 0 counts.
        """
        raise NotImplementedError(f"{self.name} has no evaluate_part")


class ReadInBlocks(Part):
    """A model that fits on no node is evaluated and initialised in blocks."""

    evaluates_blocks: ClassVar[bool] = False
    """Whether `evaluate_blocks` is implemented. A model with running statistics is assembled anyway."""

    _rules: dict[str, Any] | None = None

    def evaluate_blocks(self, block: ReadBlock, batches: Iterator[Batch]) -> dict[str, float]:
        """The metrics of `evaluate`, for a model too large for one node. `block` reads parts of it.

        Every call of `block` fetches the block from other nodes, to the device of `batches`.
        """
        raise NotImplementedError(f"{self.name} has no evaluate_blocks")

    def initial_rows(self, model: nn.Module, name: str, rows: Tensor | None, seed: int) -> Tensor:
        """Initial values of `rows` (indices along dimension 0, None for all) of parameter `name`.

        `model` may be on the meta device. One seed gives one full model, for any blocks in which nodes compute it.
        """
        if self._rules is None:
            self._rules = initializers(model)
        shape = model.get_parameter(name).shape
        return initial_rows(self._rules[name], shape, name, rows, seed)

    def initial_buffer(self, model: nn.Module, name: str) -> Tensor:
        """Initial value of buffer `name` of the whole `model`, on the CPU."""
        return initial_buffer(model, name)


class Sampled(Part):
    """Its training samples have classes, an order or an augmentation of their own."""

    batches_ahead: ClassVar[int] = 0
    """Number of training batches that a background thread prepares; 0 if a batch takes almost no time. That thread
    calls `train_batch` in the order of steps."""

    in_turn: ClassVar[bool] = False
    """Whether the training data has batches of its own size and order, which nodes take in turn. Then the indices
    for `train_batch` are consecutive, and begin at a multiple of `batch_size`. The generator's seed belongs to the
    pass over the data."""

    evaluated_at_once: int = 512
    """Training samples in a batch of those that an evaluation reads; smaller matrix products are slower."""

    metrics_are_means: ClassVar[bool] = False
    """Whether all metrics of `evaluate` are means over samples. Then nodes on several hosts may each evaluate a
    share."""

    without_test: bool = False
    """Whether nothing reads the test split, because `--held-out` evaluates on training samples. It is set before
    `prepare` and `open`, which may then leave that split closed."""

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        raise NotImplementedError

    def train_classes(self) -> Tensor | None:
        """The class of every training sample, int64 [train_size]; None if samples have no single class.

        It allows a small sample with the same proportions of classes.
        """
        return None

    def plain_batch(self, indices: Tensor) -> Batch:
        """Training samples `indices` (int64 [b]) in the form of test samples: without augmentation."""
        return self.train_batch(indices, torch.Generator().manual_seed(0))

    def divide_training(self, samples: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Indices of training samples to train on, and of `count` others to hold out, both int64 and rising.

        A pure function of its arguments: `generator` draws from `samples`, all training samples. A workload whose
        neighbouring samples overlap holds out a run of them.
        """
        order = torch.randperm(samples, generator=generator)
        return order[count:].sort().values, order[:count].sort().values

    @property
    def opened_splits(self) -> tuple[str, ...]:
        """The splits that `open` maps."""
        return ("train",) if self.without_test else ("train", "test")


class UsersObjects(Part):
    """Its model or its optimizer is an object of the user; task files have these."""

    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    """A function that makes the workload's own optimizer over parameters, in place of the method's."""

    def own_model(self, seed: int) -> nn.Module | None:
        """A new model object of the user with its initial values for `seed`, on the CPU.

        None if istbench builds the model and fills it by name, from `build_model`, `initial_rows` and
        `initial_buffer`.
        """
        return None

    def start_sums(self) -> tuple[float, ...]:
        """Sums over the initial values of the last object of `own_model`, to compare nodes; empty without one."""
        return ()

    def state_kept(self) -> AbstractContextManager[None]:
        """Afterwards, the state that the workload's functions keep outside the model is as before."""
        return nullcontext()


_AT_ONCE = 1024  # samples


def _add_to(digest: Any, values: Iterable[object]) -> None:
    """Add the tensors in `values`, and in objects there, to `digest`."""
    for part in tree_leaves(list(values)):
        if isinstance(part, Tensor):
            digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy())
        elif hasattr(part, "__dict__"):
            _add_to(digest, vars(part).values())


class Workload(Fetched, Plannable, Cuttable, ReadInBlocks, Sampled, UsersObjects, ABC):
    """A model, its data, its loss and its metric.

    A workload must have the first six functions below, `name`, `Options`, and the metric. All else has a default,
    here or in one of the optional parts above.

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

    # Without these two, the samples follow from the options, and nothing is stored.

    def prepare(self, data: Path | None, cache: Path, progress: ShowProgress) -> DataSource:
        """Find the data in directory `data` or in `cache`, or make it; store it under `cache`, ready to map.

        Only the launcher calls this, before any worker starts.

        Raises:
            UserError: for a missing or empty directory, one in the wrong layout, or a broken file.
        """
        if data is not None:
            raise UserError(f"{self.in_errors} makes its own data: leave out --data {data}")
        self.open(DataSource.computed(b"", train=0, test=0, note=""))  # it may compute them too
        digest, test = hashlib.sha256(), 0
        size, at_once = self.train_size, self.batch_size if self.in_turn else _AT_ONCE
        for first in range(0, size, at_once):
            last = min(first + at_once, size)
            _add_to(digest, self.plain_batch(torch.arange(first, last)))
            if size > at_once:
                progress("samples", last, size)
        for batch in self.test_batches():
            _add_to(digest, batch)
            test += len(batch[1])
        note = f"synthetic data: computed by {self.name}"
        return DataSource.computed(digest.digest(), train=size, test=test, note=note)

    def open(self, source: DataSource) -> None:
        """Map the prepared data. Cheap; every worker calls it before the batch methods.

        Raises:
            UserError: if the data is missing or damaged, or not what `prepare` found.
        """
        return

    unit: str = ""
    """Unit of the metric, for readers, such as "nats a token"; empty for a share or a count."""

    targets: tuple[float, ...] = ()
    """Levels of the metric for time to accuracy, any finite numbers. They may depend on the data; `prepare` sets
    them. Without targets, the report uses levels near the best run's metric for real data."""

    batch_size: ClassVar[int] = 128
    """Default minibatch of one node."""

    epochs: ClassVar[float] = 10
    """Default length of a run, in passes over the training data by all nodes together."""

    compiles: bool = False
    """Whether `loss` computes with a compiled copy of the model, as under `--compile`."""

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
