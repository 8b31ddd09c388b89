"""The published exchange of Distributed SLIDE: every node gets the active outputs of all, and normalises alone."""

import numpy as np
import torch

from istbench.methods.hidden_exchange import HiddenExchange
from istbench.slide.inversion import Pairs
from istbench.slide.softmax import Normaliser, combined

PAIR_BYTES, SAMPLE_BYTES = 8, 8  # as they are sent: an output's number and value; a sample's count and true outputs


def gathered_normaliser(
    exchange: HiddenExchange, mine: Normaliser, pairs: Pairs, outputs: np.ndarray, first: int
) -> Normaliser:
    """The normaliser over all nodes' active outputs, of which everyone gets every one, its number beside it.

    Args:
        mine: over this node's own. pairs, outputs: those, the latter float32 [pairs]. first: its first output.
    """
    samples = len(mine.values)
    heads = np.stack([np.bincount(pairs.samples, minlength=samples).astype(np.float32), mine.values[:, 2]])
    all_heads = exchange.each(torch.from_numpy(heads), "gathering counts of active outputs").numpy()
    counts = all_heads[:, 0].astype(np.int64)
    order = np.argsort(pairs.samples, kind="stable")
    sent = np.zeros((2, int(counts.sum(axis=1).max())), np.int32)
    sent[0, : len(order)] = (np.repeat(pairs.rows, np.diff(pairs.starts)) + first)[order]
    sent[1, : len(order)] = outputs[order].view(np.int32)
    parts = exchange.each(torch.from_numpy(sent), "gathering active outputs").numpy()
    return combined(
        [
            Normaliser(_normalised(part[1, : own.sum()].view(np.float32), own, head[1]))
            for part, own, head in zip(parts, counts, all_heads, strict=True)
        ]
    )


def _normalised(outputs: np.ndarray, counts: np.ndarray, true: np.ndarray) -> np.ndarray:
    """What `Normaliser` has, of outputs sample by sample, so many each."""
    values = np.stack([np.full(len(counts), -np.inf, np.float32), np.zeros(len(counts), np.float32), true], axis=1)
    filled = np.flatnonzero(counts)
    if len(filled):
        starts = (np.cumsum(counts) - counts)[filled]
        values[filled, 0] = np.maximum.reduceat(outputs, starts)
        exponentials = np.exp(outputs - np.repeat(values[:, 0], counts))
        values[filled, 1] = np.add.reduceat(exponentials, starts)
    return values
