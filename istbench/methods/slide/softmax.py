"""Softmax cross entropy over active sets, in parts between which nodes exchange normalisers.

The loss of a sample is that of the amazon670k workload: the mean over its labels of minus the log-softmax, or 0
without labels. The loss of a batch is the mean over its samples. The softmax is over the active rows of all nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from istbench.methods.slide.active import BLOCKS, Labels, Pairs
from istbench.methods.slide.threads import Threads, kernel


@dataclass(frozen=True)
class Normaliser:
    """The terms by which a softmax is normalised: for every sample, over some of its active rows.

    values: float32 [b, 3]: the largest output, or -inf where no row is active; the sum of the exponentials of
        outputs minus the largest; the sum of the outputs of true rows, each times its share. Nodes exchange only
        this.
    """

    values: np.ndarray

    @property
    def logs(self) -> np.ndarray:
        """The logarithm of the sum of exponentials, float32 [b]; -inf where no row is active."""
        with np.errstate(divide="ignore"):
            return np.where(self.values[:, 1] > 0, self.values[:, 0] + np.log(self.values[:, 1]), -np.inf)

    def loss(self, labelled: np.ndarray) -> float:
        """The loss of the batch. labelled: bool [b], whether each sample has labels on any node."""
        own = self.logs[labelled].astype(np.float64) - self.values[labelled, 2]
        return float(own.sum() / len(labelled))


def normaliser(outputs: np.ndarray, pairs: Pairs, labels: Labels, threads: Threads) -> Normaliser:
    """The normaliser over the active rows of `pairs`, whose outputs are `outputs` (float32 [pairs])."""
    samples = len(labels.ends)
    parts = np.empty((BLOCKS, samples, 3), np.float32)

    def block(number: int) -> None:
        first, last = pairs.starts[pairs.edges[number]], pairs.starts[pairs.edges[number + 1]]
        _normalise(outputs, pairs.samples, first, last, parts[number])

    threads.run(block, BLOCKS)
    whole = combined([Normaliser(part) for part in parts]).values
    owners = np.repeat(np.arange(samples), np.diff(labels.ends, prepend=0))
    whole[:, 2] = np.bincount(owners, outputs[pairs.true] * labels.shares, samples)
    return Normaliser(whole)


def combined(parts: Sequence[Normaliser]) -> Normaliser:
    """The normaliser over the rows of all `parts`: blocks of pairs, or nodes in the order of their ranks."""
    values = np.stack([part.values for part in parts])
    largest = values[:, :, 0].max(axis=0)
    finite = np.where(np.isfinite(largest), largest, 0)
    sums = np.zeros_like(largest)
    for part in values:
        sums += part[:, 1] * np.exp(part[:, 0] - finite)
    return Normaliser(np.stack([largest, sums, values[:, :, 2].sum(axis=0)], axis=1))


def output_gradient(
    outputs: np.ndarray, pairs: Pairs, labels: Labels, logs: np.ndarray, labelled: np.ndarray, threads: Threads
) -> np.ndarray:
    """The gradient of the batch's loss by `outputs` (float32 [pairs]), written over them.

    Args:
        logs: float32 [b], `Normaliser.logs` over all nodes.
        labelled: bool [b], whether each sample has labels on any node.
    """
    scales = (labelled / len(labelled)).astype(np.float32)

    def block(number: int) -> None:
        first, last = pairs.starts[pairs.edges[number]], pairs.starts[pairs.edges[number + 1]]
        _slopes(outputs, pairs.samples, first, last, logs, scales)

    threads.run(block, BLOCKS)
    outputs[pairs.true] -= labels.shares / np.float32(len(labelled))
    return outputs


@kernel
def _normalise(outputs: np.ndarray, samples: np.ndarray, first: int, last: int, part: np.ndarray) -> None:
    """Fill `part` ([b, 3]) with the largest output and the sum of exponentials of pairs `first` to `last`."""
    for sample in range(len(part)):
        part[sample, 0] = -np.inf
        part[sample, 1] = 0
        part[sample, 2] = 0
    for pair in range(first, last):
        sample = samples[pair]
        if outputs[pair] > part[sample, 0]:
            part[sample, 0] = outputs[pair]
    for pair in range(first, last):
        sample = samples[pair]
        part[sample, 1] += np.exp(outputs[pair] - part[sample, 0])


@kernel
def _slopes(
    outputs: np.ndarray, samples: np.ndarray, first: int, last: int, logs: np.ndarray, scales: np.ndarray
) -> None:
    """Turn outputs of pairs `first` to `last` into probabilities, each times the scale of its sample."""
    for pair in range(first, last):
        sample = samples[pair]
        outputs[pair] = np.exp(outputs[pair] - logs[sample]) * scales[sample]
