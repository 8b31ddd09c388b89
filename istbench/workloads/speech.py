"""Google Speech Commands with a multilayer perceptron on mel spectrograms (IST, arXiv 1910.02120)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from istbench.base.options.numbers import Clips, Seed, Units
from istbench.base.options.options import option
from istbench.workloads.base import Batch, DataSource, ShowProgress, divided
from istbench.workloads.classifier import Classifier
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.structure import chain_groups
from istbench.workloads.prepared import Labelled, Sourced, open_summary
from istbench.workloads.speech_data.build import (
    SpeechSummary,
    open_mean,
    open_split,
    prepare_recorded,
    prepare_synthetic,
)
from istbench.workloads.speech_data.features import FEATURES
from istbench.workloads.speech_data.recordings import PUBLISHED
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD, Corpus
from istbench.workloads.speech_data.words import WORDS

_TEST_BATCH = 1_024


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    layers: Literal[2, 3] = option(2, "weight matrices of the network, 2 or 3")
    hidden: Units = option(4096, "units of a hidden layer")
    clips_per_word: Clips = option(CLIPS_PER_WORD, "synthetic clips of each word; no effect on recorded data")
    data_seed: Seed = option(0, "seed of the synthetic corpus; no effect on recorded data")


class Speech(Classifier, Sourced):
    """Classify one-second clips of spoken words: 4096 features, one or two hidden layers with BatchNorm.

    Data: recorded words, a folder each, such as the 35 of Speech Commands v0.02; or a synthetic corpus of these
    words, spoken by eSpeak NG. The first second of a recording counts; zeros pad a shorter one. `prepare` and
    `open` set the number of words (35 before) and the targets.
    """

    name = "speech"
    Options = SpeechOptions
    targets: tuple[float, ...] = (0.63, 0.75, 0.77)
    batch_size = 128
    epochs = 20
    width = "hidden"
    published = PUBLISHED

    options: SpeechOptions

    def __init__(self, options: SpeechOptions | None = None) -> None:
        super().__init__(options)
        self._splits: dict[str, Labelled] = {}
        self._words = WORDS
        self._mean = np.zeros(FEATURES, np.float32)

    # Data.

    def _prepared(self, data: Path | None, folder: Path, progress: ShowProgress) -> DataSource:
        if data is not None:
            return prepare_recorded(data, folder, progress)
        corpus = Corpus(clips_per_word=self.options.clips_per_word, seed=self.options.data_seed)
        return prepare_synthetic(corpus, folder, progress)

    def open(self, source: DataSource) -> None:
        summary, path = self._learn(source), Path(source.path)
        self._splits = {split: open_split(path, summary, split) for split in self.opened_splits}
        self._mean = open_mean(path)

    def _learn(self, source: DataSource) -> SpeechSummary:
        summary = open_summary(Path(source.path), SpeechSummary)
        self._words = summary.words
        # The papers' targets are for these words. For others the report uses shares of the best run's metric.
        self.targets = type(self).targets if self._words == WORDS else ()
        return summary

    @property
    def train_size(self) -> int:
        return len(self._splits["train"].labels)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Features float32 [b, 4096], in dB minus the training mean, and words int64 [b]; no augmentation."""
        return self._batch(self._splits["train"], indices.numpy())

    def train_classes(self) -> Tensor:
        return torch.tensor(self._splits["train"].labels)

    def test_batches(self) -> Iterator[Batch]:
        test = self._splits["test"]
        for chosen in torch.arange(len(test)).split(_TEST_BATCH):
            yield self._batch(test, chosen.numpy())

    def _batch(self, split: Labelled, chosen: np.ndarray) -> Batch:
        features = split.samples[chosen]
        # A shift of the inputs does not change training with BatchNorm. But its running mean could not follow the
        # weights if every input were near -60 dB.
        features -= self._mean
        return torch.from_numpy(features), torch.from_numpy(split.labels[chosen])

    # Model.

    def build_model(self) -> nn.Sequential:
        """Linear layers without bias, each followed by BatchNorm; the last BatchNorm has no affine part."""
        widths = [FEATURES, *[self.options.hidden] * (self.options.layers - 1)]
        model = nn.Sequential()
        for number, (fan_in, width) in enumerate(pairwise(widths), start=1):
            model.add_module(f"linear{number}", nn.Linear(fan_in, width, bias=False))
            model.add_module(f"norm{number}", nn.BatchNorm1d(width))
            model.add_module(f"relu{number}", nn.ReLU())
        model.add_module("output", nn.Linear(self.options.hidden, len(self._words), bias=False))
        model.add_module("output_norm", nn.BatchNorm1d(len(self._words), affine=False))
        return model

    def meta_batch(self, samples: int) -> Batch:
        return torch.empty(samples, FEATURES), torch.empty(samples, dtype=torch.int64)

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """A group for each hidden layer: rows of its weight, its BatchNorm entries, columns of the next weight."""
        return chain_groups(model, model.children())

    def narrowed(self, times: int) -> dict[str, Any]:
        return {"hidden": divided(self.options.hidden, times)}

    def method_defaults(self, method: str) -> dict[str, Any]:
        """The papers' settings: plain SGD with learning rate 0.01, 20 local steps."""
        return {"lr": 0.01, "local_steps": 20}
