"""The share of one node in a wide softmax layer: some of its rows; every sample computes a few of them.

A step is `forward`, an exchange of normalisers, `backward`, an exchange of the gradients of hidden vectors.
"""

from typing import Any

import numpy as np

from istbench.base.seeds import derived_seed
from istbench.methods.slide.active import ActiveSets, Labels, Pairs, active_sets, inverted
from istbench.methods.slide.index import Index
from istbench.methods.slide.kernels import RowOptimizer, backward, row_outputs
from istbench.methods.slide.softmax import Normaliser, normaliser, output_gradient
from istbench.methods.slide.threads import Threads


class OutputShard:
    """Rows of an output layer, trained on active sets.

    Attributes:
        weight, bias: float32 [n, width] and [n], updated in place. index: finds active rows; None for random rows.
        random: the number of random rows of a sample. They stand for all rows that are not found in its softmax.
    """

    def __init__(
        self,
        weight: np.ndarray,
        bias: np.ndarray,
        optimizer: RowOptimizer,
        threads: Threads,
        *,
        index: Index | None,
        random: int = 0,
        seed: int,
    ) -> None:
        self.weight, self.bias, self.optimizer, self.index, self.random = weight, bias, optimizer, index, random
        self._threads, self._seed = threads, seed
        self._pass: tuple[np.ndarray, Labels, Pairs, np.ndarray] | None = None

    def active(self, hidden: np.ndarray, labels: Labels, step: int) -> ActiveSets:
        """The active sets of a batch in the `step`-th step; `hidden` is float32 [b, width]."""
        index, found = self.index, dict[str, Any]()
        if index is not None:
            found = {"tables": index.tables, "codes": index.codes(hidden), "common": index.common}
        seed = derived_seed(self._seed, "active", step)
        return active_sets(labels, len(self.weight), self._threads, random=self.random, seed=seed, **found)

    def forward(self, hidden: np.ndarray, labels: Labels, sets: ActiveSets) -> Normaliser:
        """The normaliser of the batch over this node's active rows. Keeps their outputs for `backward`."""
        pairs = inverted(sets, labels, len(self.weight))
        outputs = row_outputs(self.weight, self.bias, hidden, pairs, self._threads)
        outputs += pairs.logs
        self._pass = hidden, labels, pairs, outputs
        return normaliser(outputs, pairs, labels, self._threads)

    def backward(self, whole: Normaliser, labelled: np.ndarray, lr: float) -> np.ndarray:
        """Update the rows of the last `forward`; returns their part of its hidden vectors' gradient, [b, width].

        Args:
            whole: the normaliser over all nodes. labelled: bool [b], whether each sample has labels on any node.
        """
        if self._pass is None:
            raise RuntimeError("a backward pass needs a forward pass before it")
        hidden, labels, pairs, outputs = self._pass
        self._pass = None
        slopes = output_gradient(outputs, pairs, labels, whole.logs, labelled, self._threads)
        return backward(self.weight, self.bias, hidden, slopes, pairs, self.optimizer, lr, self._threads)
