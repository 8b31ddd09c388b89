"""A node's share of a wide softmax layer: some of its rows, of which every sample computes a few.

A step is `forward`, an exchange of normalisers, `backward`, an exchange of the gradients of hidden vectors.
"""

import numpy as np

from istbench.seeds import derived_seed
from istbench.slide.active import ActiveSets, Labels, active_sets
from istbench.slide.index import Index
from istbench.slide.inversion import Pairs, inverted
from istbench.slide.kernels import backward, row_outputs
from istbench.slide.optimizer import RowOptimizer
from istbench.slide.softmax import Normaliser, normaliser, output_gradient
from istbench.slide.threads import Threads

_NO_ROWS = np.empty(0, np.int32)


class OutputShard:
    """Rows of an output layer, trained on active sets.

    Attributes:
        weight, bias: float32 [n, width] and [n], updated in place. index: finds rows; None for random ones.
        random: random ones of a sample, each of which stands in its softmax for as many as are not active.
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
        index = self.index
        return active_sets(
            labels,
            len(self.weight),
            self._threads,
            tables=None if index is None else index.tables,
            codes=None if index is None else index.codes(hidden),
            common=_NO_ROWS if index is None else index.common,
            random=self.random,
            seed=derived_seed(self._seed, "active", step),
        )

    def forward(self, hidden: np.ndarray, labels: Labels, sets: ActiveSets) -> Normaliser:
        """The normaliser of the batch over this node's active rows. Their outputs are kept for `backward`."""
        pairs = inverted(sets, labels, len(self.weight))
        outputs = row_outputs(self.weight, self.bias, hidden, pairs, self._threads)
        outputs += pairs.logs
        self._pass = hidden, labels, pairs, outputs
        return normaliser(outputs, pairs, labels, self._threads)

    def active_outputs(self) -> tuple[Pairs, np.ndarray]:
        """The pairs of a row and a sample that the last `forward` computed, and their outputs with `logs`."""
        if self._pass is None:
            raise RuntimeError("there are outputs after a forward pass, until its backward pass")
        return self._pass[2], self._pass[3]

    def backward(self, whole: Normaliser, labelled: np.ndarray, lr: float) -> np.ndarray:
        """Update the rows that the last `forward` used; the gradient of its hidden vectors by them, [b, width].

        Args:
            whole: the normaliser over all nodes. labelled: bool [b], which samples have labels on any node.
        """
        if self._pass is None:
            raise RuntimeError("a backward pass needs a forward pass before it")
        hidden, labels, pairs, outputs = self._pass
        self._pass = None
        slopes = output_gradient(outputs, pairs, labels, whole.logs, labelled, self._threads)
        changes = None if self.index is None else self.index.changes
        return backward(
            self.weight, self.bias, hidden, slopes, pairs, self.optimizer, lr, self._threads, changes=changes
        )
