"""Detect metrics that fall as a model gets better. Tables and pictures take higher values as better."""

import math
import re
from collections.abc import Sequence
from itertools import combinations

_FALLING_WORDS = {
    "loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "logloss", "entropy", "crossentropy",
    "xent", "wer", "cer", "ter", "eer", "mse", "rmse", "mae", "mape", "bpc", "bpb", "bpw", "fid", "divergence",
    "kl", "kld", "brier", "regret", "fpr", "fnr",
}  # fmt: skip
_FALLING_NAMES = {"negativeloglikelihood", "bitsperbyte", "bitspercharacter", "bitsperchar", "bitsperdim"}
_MOST_PAIRED = 200


def named_as_falling(metric: str) -> bool:
    """Whether the name says that `metric` falls as a model gets better: `val_loss`, `perplexity`, `top5_error`."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", metric).lower())
    return not _FALLING_WORDS.isdisjoint(words) or any(name in "".join(words) for name in _FALLING_NAMES)


def agreement(one: Sequence[float | None], other: Sequence[float | None]) -> float | None:
    """Kendall's rank correlation of two metrics over a run's evaluations, -1 to 1.

    Below zero, `one` falls while `other` rises. None if no two evaluations differ in both metrics. Of a long run
    only evenly spaced evaluations count.
    """
    both = [
        (a, b)
        for a, b in zip(one, other, strict=True)
        if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
    ]
    every = max(1, len(both) // _MOST_PAIRED)
    signs = [
        1 if (later[0] > before[0]) == (later[1] > before[1]) else -1
        for before, later in combinations(both[::every], 2)
        if later[0] != before[0] and later[1] != before[1]
    ]
    return sum(signs) / len(signs) if signs else None
