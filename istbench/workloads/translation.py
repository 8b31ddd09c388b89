"""A sequence-to-sequence LSTM with attention at Sockeye's sizes, on synthetic text.

P3 measures translation (arXiv 1905.03960) with Sockeye's recurrent network: embeddings of 512, a bidirectional
encoder and a decoder of 1,024 units, attention by a small perceptron (Bahdanau et al., 2015). The text is
synthetic: words follow Zipf's law, and the translation of a sentence is its words in reverse order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.base.options.numbers import Classes, Count, Units
from istbench.base.options.options import option
from istbench.workloads.base import Batch, Workload

_SEED = 1
_TEST_SENTENCES = 32
_TEST_BATCH = 16
_START = 0  # the first word of every translation


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """Options of the translation workload.

    Raises:
        UserError: for an odd `hidden`.
    """

    hidden: Units = option(1024, "units of the encoder and of the decoder")
    embedding: Units = option(512, "size of a word's embedding")
    words: Classes = option(16_000, "vocabulary of each language")
    length: Units = option(20, "words of a sentence")
    samples: Count = option(4_096, "training sentences")

    def __post_init__(self) -> None:
        if self.hidden % 2:
            raise UserError(f"hidden must be even, half for each direction, not {self.hidden}")


class Translator(nn.Module):
    """Encoder, attention and decoder, with the true previous word as input (teacher forcing).

    Attention uses the decoder's states, not its predictions, so all steps of a sentence run at once.
    """

    def __init__(self, options: TranslationOptions) -> None:
        super().__init__()
        hidden = options.hidden
        self.source = nn.Embedding(options.words, options.embedding)
        self.encoder = nn.LSTM(options.embedding, hidden // 2, bidirectional=True, batch_first=True)
        self.target = nn.Embedding(options.words, options.embedding)
        self.decoder = nn.LSTM(options.embedding, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(hidden, options.words)

    def forward(self, source: Tensor, previous: Tensor) -> Tensor:
        """Logits float32 [b, t, words] of each next word; `source` int64 [b, s], `previous` int64 [b, t]."""
        encoded, _ = self.encoder(self.source(source))
        decoded, _ = self.decoder(self.target(previous))
        sums = self.query(decoded)[:, :, None] + self.key(encoded)[:, None]
        weights = self.score(torch.tanh(sums)).squeeze(-1).softmax(-1)
        context = weights @ encoded
        return self.output(torch.tanh(self.combine(torch.cat([decoded, context], dim=-1))))


class Translation(Workload):
    """P3's translation model, an LSTM with attention, on synthetic sentences; for throughput."""

    name = "translation"
    Options = TranslationOptions
    batch_size = 32
    metrics_are_means = True
    epochs = 1
    width = "hidden"

    options: TranslationOptions

    def computed_bytes(self) -> int:
        return (self.options.samples + _TEST_SENTENCES) * self.options.length * 8

    @cached_property
    def _sentences(self) -> Tensor:
        options = self.options
        frequencies = 1 / torch.arange(1, options.words, dtype=torch.float64)
        shape = (options.samples + _TEST_SENTENCES, options.length)
        generator = torch.Generator().manual_seed(_SEED)
        drawn = torch.multinomial(frequencies, shape[0] * shape[1], replacement=True, generator=generator)
        return 1 + drawn.view(shape)

    @property
    def train_size(self) -> int:
        return self.options.samples

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Sentences and their translations, words int64 [b, length] each."""
        return _with_translation(self._sentences[indices])

    def test_batches(self) -> Iterator[Batch]:
        """A few sentences that are not in the training split."""
        for sentences in self._sentences[self.options.samples :].split(_TEST_BATCH):
            yield _with_translation(sentences)

    def build_model(self) -> Translator:
        return Translator(self.options)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        source, translation = batch
        logits = model(source, _previous(translation))
        return F.cross_entropy(logits.flatten(0, 1), translation.flatten())

    def meta_batch(self, samples: int) -> Batch:
        return _with_translation(torch.empty(samples, self.options.length, dtype=torch.int64))

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """`accuracy`: the share of correct words, each predicted from the true words before it."""
        right = count = 0
        for source, translation in batches:
            predicted = model(source, _previous(translation)).argmax(-1)
            right += int((predicted == translation).sum())
            count += translation.numel()
        return {"accuracy": right / count}

    def method_defaults(self, method: str) -> dict[str, Any]:
        """Adam with Sockeye's learning rate."""
        return {"optimizer": "adam", "lr": 0.0003}


def _with_translation(sentences: Tensor) -> Batch:
    return sentences, sentences.flip(-1)


def _previous(translation: Tensor) -> Tensor:
    return F.pad(translation[:, :-1], (1, 0), value=_START)
