"""A language model over the characters or bytes of any text, after nanoGPT (github.com/karpathy/nanoGPT)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.base.options.numbers import Layers, Percent, Share, Units
from istbench.base.options.options import option
from istbench.workloads.base import (
    NARROW,
    WIDEN,
    WIDENED,
    Batch,
    DataSource,
    ShowProgress,
    Workload,
    check_widened,
    opened,
)
from istbench.workloads.initialise import initial_rows
from istbench.workloads.models.transformer import Transformer, initializer, transformer_groups
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.prepared import open_summary
from istbench.workloads.text_data.build import (
    Symbols,
    TextSummary,
    count_symbols,
    find_text,
    open_split,
    prepare_text,
    source_of,
)

_TEST_POSITIONS = 8_192  # in a test batch
_BEFORE_DATA = 256  # symbols of the model before the text is known


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of the text workload.

    Raises:
        UserError: for a `width` that `heads` does not divide, or for options that widen nothing.
    """

    symbols: Symbols = option("characters", "what the model reads: characters or bytes")
    width: Units = option(128, "numbers of each position between blocks")
    layers: Layers = option(4, "blocks of attention and a perceptron of 4 x width units")
    heads: Units = option(4, "heads of the attention of a block")
    context: Units = option(64, "positions that the model sees at once")
    dropout: Share = option(0.0, "share of numbers set to zero in training")
    bias: bool = option(False, "biases in linear layers and LayerNorm")
    tied: bool = option(True, "output layer with the weights of the symbols' embedding")
    test_percent: Percent = option(10, "percent of the text for testing, at its end")
    widen: Units = option(1, WIDEN)
    widened: Literal["late", "all"] = option("late", WIDENED)
    narrow: Units = option(1, NARROW)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"heads={self.heads} must divide width={self.width}")
        check_widened(self.widen, self.widened)
        if self.layers == 1 and self.widen > 1 and self.widened == "late":
            raise UserError(
                f"widen={self.widen} needs a late block, and layers=1 has none; set widened=all, or leave it out"
            )


class Text(Workload):
    """Predict the next character of a text by a causal transformer.

    Data: any text, or Python's own help topics. The last `test_percent` of the text are for testing, the rest for
    training. A training sample is a window of `context` symbols and the symbol after each. Window i starts at a
    random one of the symbols i x context to (i + 1) x context - 1, drawn anew in each step. So windows have all
    offsets, as in nanoGPT, and an epoch has as many symbols as the text. `prepare`, `open` and `expect` set the
    number of symbols.
    """

    name = "text"
    Options = TextOptions
    metric = "loss"
    lower_is_better = True
    unit = "nats a character"
    batch_size = 12
    epochs = 2
    width = "width"
    sized_by_data = True

    options: TextOptions

    def __init__(self, options: TextOptions | None = None) -> None:
        super().__init__(options)
        if self.options.symbols == "bytes":
            self.unit = "nats a byte"
        self._symbols = _BEFORE_DATA
        self._splits: dict[str, np.ndarray] = {}
        self._span = np.arange(self.options.context + 1)

    # Data.

    def prepare(self, data: Path | None, cache: Path, progress: ShowProgress) -> DataSource:
        """The text at `data`, a file or a directory of *.txt files; without it, Python's own help topics.

        Raises:
            UserError: for a text that is missing, empty, not UTF-8 or shorter than a context, or a `cache` that is
                not writable.
        """
        text, unit, context = find_text(data), self.options.symbols, self.options.context
        directory, summary = prepare_text(text, unit, self.options.test_percent, cache / "text", progress)
        self._learn(summary)
        if summary.train <= context:
            raise UserError(
                f"{text.place} has {summary.train:,} {unit} to train on ({100 - self.options.test_percent} % of "
                f"it), not more than a context of {context:,}; give more text, or use "
                f"--workload-set context={summary.train // 2}"
            )
        test = -(-(summary.test - 1) // context)
        return source_of(directory, summary, unit=unit, train=(summary.train - 1) // context, test=test)

    def expect(self, data: Path | None, chosen: Collection[str]) -> str:
        text = find_text(data)
        self._symbols = count_symbols(text, self.options.symbols, self.options.test_percent)
        return f"{self._symbols} symbols, those of {text.place}"

    def open(self, source: DataSource) -> None:
        path = Path(source.path)
        summary = open_summary(path, TextSummary)
        self._learn(summary)
        self._splits = {split: open_split(path, summary, split) for split in self.opened_splits}

    def _learn(self, summary: TextSummary) -> None:
        self._symbols = summary.symbols
        # nanoGPT reaches 1.88 with the default network. Bytes of this text are its characters.
        self.targets = (2.4, 2.1, 1.9) if summary.kind == "tiny_shakespeare" else ()

    def _split(self, split: str) -> np.ndarray:
        return opened(self._splits.get(split))

    @property
    def train_size(self) -> int:
        """Number of windows side by side in the training text."""
        return (len(self._split("train")) - 1) // self.options.context

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Windows of symbols, and the symbol after each; int64 [b, context] both."""
        context = self.options.context
        starts = indices * context + torch.randint(context, indices.shape, generator=generator)
        return self._windows(starts.clamp_(max=len(self._split("train")) - 1 - context))

    def plain_batch(self, indices: Tensor) -> Batch:
        """Windows `indices` from their first symbol on."""
        return self._windows(indices * self.options.context)

    def _windows(self, starts: Tensor) -> Batch:
        rows = self._split("train")[starts.numpy()[:, None] + self._span]
        windows = torch.from_numpy(rows.astype(np.int64))
        return windows[:, :-1], windows[:, 1:]

    def divide_training(self, samples: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The last `count` windows are held out. The window before them is in no part: it reaches into them."""
        return torch.arange(samples - count - 1), torch.arange(samples - count, samples)

    def test_batches(self) -> Iterator[Batch]:
        """The test text in windows of `context` symbols side by side, in order; the last one may be shorter.

        Every symbol but the first is predicted once.
        """
        text, context = self._split("test"), self.options.context
        together = max(1, _TEST_POSITIONS // context) * context
        for first in range(0, len(text) - 1, together):
            part = torch.from_numpy(text[first : first + together + 1].astype(np.int64))
            whole = (len(part) - 1) // context * context
            if whole:
                yield part[:whole].view(-1, context), part[1 : whole + 1].view(-1, context)
            if whole < len(part) - 1:
                yield part[None, whole:-1], part[None, whole + 1 :]

    # Model.

    def build_model(self) -> Transformer:
        of_text = {"symbols", "test_percent"}
        return Transformer(
            self._symbols, **{name: value for name, value in vars(self.options).items() if name not in of_text}
        )

    def initial_rows(self, model: nn.Module, name: str, rows: Tensor | None, seed: int) -> Tensor:
        """GPT-2's initial values: see `initializer`."""
        rule = initializer(name, self.options.layers)
        return initial_rows(rule, model.get_parameter(name).shape, name, rows, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        symbols, following = batch
        return F.cross_entropy(model(symbols).flatten(0, 1), following.flatten())

    def meta_batch(self, samples: int) -> Batch:
        rows = torch.empty(samples, self.options.context + 1, dtype=torch.int64)
        return rows[:, :-1], rows[:, 1:]

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """`loss`: mean cross entropy of a symbol of the test text. A window's first symbol sees only itself."""
        total, count = 0.0, 0
        for symbols, following in batches:
            scores = model(symbols).flatten(0, 1)
            total += float(F.cross_entropy(scores, following.flatten(), reduction="sum"))
            count += following.numel()
        return {"loss": total / count if count else float("nan")}

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        return transformer_groups(cast(Transformer, model))

    def narrowed(self, times: int) -> dict[str, Any]:
        return {"narrow": self.options.narrow * times}

    def method_defaults(self, method: str) -> dict[str, Any]:
        """nanoGPT's settings for small texts, and 20 local steps."""
        return {
            "optimizer": "adamw",
            "lr": 0.001,
            "beta2": 0.99,
            "weight_decay": 0.1,
            "weight_decay_of": "matrices",
            "clip": 1.0,
            "schedule": "cosine",
            "warmup": 0.05,
            "cosine_end": 0.1,
            "local_steps": 20,
        }
