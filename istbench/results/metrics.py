"""A metric: its name, its direction and its unit. Levels, best values and crossings all follow from it."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import combinations
from typing import Literal, TypeVar

from istbench.base.errors import UserError

Source = Literal["recorded", "name", "curves", "assumed"]
"""The way in which a direction is known: recorded by the run, told by the metric's name, seen in the curves of the
runs, or assumed to be upward."""

T = TypeVar("T")

_FALLING_WORDS = {
    "loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "logloss", "entropy", "crossentropy",
    "xent", "wer", "cer", "ter", "eer", "mse", "rmse", "mae", "mape", "bpc", "bpb", "bpw", "fid", "divergence",
    "kl", "kld", "brier", "regret", "fpr", "fnr",
}  # fmt: skip
_FALLING_NAMES = {"negativeloglikelihood", "bitsperbyte", "bitspercharacter", "bitsperchar", "bitsperdim"}
_RISING_WORDS = {
    "accuracy", "acc", "precision", "recall", "f1", "auc", "auroc", "auprc", "map", "ndcg", "mrr", "bleu", "rouge",
    "meteor", "chrf", "iou", "miou", "dice", "r2", "ssim", "mcc", "kappa", "tpr", "tnr",
}  # fmt: skip
_SHARE = re.compile(r"\b(accuracy|acc|precision \d+|top\d+)\b")
_OF_A_SPLIT = {"test", "val", "valid", "validation", "dev", "eval", "heldout"}
_MOST_PAIRED = 200
_LARGEST_WHOLE = 1e6


def without_clashes(metrics: Mapping[str, T], own: Collection[str]) -> dict[str, T]:
    """`metrics` by name; one called as a figure of `own`, such as `samples`, is `metric_samples`."""
    return {f"metric_{name}" if name in own else name: value for name, value in metrics.items()}


@dataclass(frozen=True)
class Metric:
    """A number by which models are compared.

    Attributes:
        lower_is_better: its direction. unit: shown beside the name; empty without one.
        source: the way in which the direction is known. It does not tell metrics apart.
    """

    name: str
    _: KW_ONLY
    lower_is_better: bool = False
    unit: str = ""
    source: Source = field(default="recorded", compare=False)

    def signed(self, value: float) -> float:
        """`value`, so that higher is better: of a metric that falls, with its other sign."""
        return -value if self.lower_is_better else value

    def better(self, one: float, other: float) -> bool:
        return self.signed(one) > self.signed(other)

    def reached(self, value: float | None, level: float) -> bool:
        """Whether `value` is at `level` or better. A missing value reaches nothing."""
        return value is not None and self.signed(value) >= self.signed(level)

    def best(self, values: Iterable[float | None]) -> float | None:
        """The best of `values`; None if all are missing."""
        return max((value for value in values if value is not None), key=self.signed, default=None)

    @property
    def worst(self) -> float:
        """An infinite value that is worse than every other; it stands for a run without a number."""
        return self.signed(-math.inf)

    def easiest_first(self, levels: Iterable[float]) -> tuple[float, ...]:
        """The different `levels` in the order in which a model that gets better reaches them."""
        return tuple(sorted(set(levels), key=self.signed))

    @property
    def may_be_share(self) -> bool:
        """Whether values from 0 to 1 are a share of samples, by the name: accuracy, precision@5, top5."""
        return not self.unit and not self.lower_is_better and bool(_SHARE.search(" ".join(_words(self.name))))

    @property
    def error_name(self) -> str:
        """The name under which `evaluate` may give the standard error of this metric."""
        return f"{self.name}_standard_error"

    @property
    def direction(self) -> str:
        return "lower is better" if self.lower_is_better else "higher is better"

    @property
    def apart(self) -> tuple[str, ...]:
        """Words that tell this metric from others of its name; none for one that rises and has no unit."""
        return (*(["falls"] if self.lower_is_better else []), *([self.unit] if self.unit else []))

    @property
    def title(self) -> str:
        """The name with the unit: `val_loss (nats a token)`, `accuracy`."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def axis_on(self, split: str) -> str:
        """The label of an axis with values on `split` of the data: `test accuracy`, `val_loss (nats a token)`."""
        return self.title if _OF_A_SPLIT & set(_words(self.name)) else f"{split} {self.title}"


def metric_named(name: str) -> Metric:
    """The metric of that `name`, with the direction that its name tells; else higher is better, by assumption."""
    lower = falls_by_name(name)
    return Metric(name, lower_is_better=bool(lower), source="assumed" if lower is None else "name")


def falls_by_name(name: str) -> bool | None:
    """Whether the name says that a metric falls as a model gets better; None if the name does not tell.

    `val_loss`, `perplexity` and `top5_error` fall; `accuracy`, `precision@1` and `top5` rise.
    """
    words = _words(name)
    if not _FALLING_WORDS.isdisjoint(words) or any(told in "".join(words) for told in _FALLING_NAMES):
        return True
    if not _RISING_WORDS.isdisjoint(words) or any(re.fullmatch(r"top\d+", word) for word in words):
        return False
    return None


def _words(name: str) -> list[str]:
    """The words of a name in lower case: `valLoss` has `val` and `loss`."""
    return re.findall(r"[a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower())


def agreement(one: Sequence[float | None], other: Sequence[float | None], metric: Metric) -> float | None:
    """Kendall's rank correlation of values `one` with how good `metric` is over a run's evaluations, -1 to 1.

    Below zero, `one` falls while `other`, the values of `metric`, get better. None if no two evaluations differ in
    both. Of a long run only evenly spaced evaluations count.
    """
    both = [
        (a, b)
        for a, b in zip(one, other, strict=True)
        if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
    ]
    every = max(1, len(both) // _MOST_PAIRED)
    signs = [
        1 if (later[0] > before[0]) == metric.better(later[1], before[1]) else -1
        for before, later in combinations(both[::every], 2)
        if later[0] != before[0] and later[1] != before[1]
    ]
    return sum(signs) / len(signs) if signs else None


def value_text(value: float, decimals: int = 3) -> str:
    """A finite `value` of a metric: with 3 decimals `0.912`, `1.880`, `27.35`, `1234`, `0.00042`, `2.1e+08`.

    Numbers from 0.01 to 10 have `decimals` decimals, larger ones fewer and smaller ones more.
    """
    size = abs(value)
    if size >= _LARGEST_WHOLE or 0 < size < 10 ** (1 - decimals):
        return f"{value:.{decimals}g}"
    whole = len(str(int(size)))
    return f"{value + 0.0:.{max(0, decimals + 1 - whole)}f}"


def check_share(level: float, metric: str, targets: Sequence[float], workload: str, flag: str = "") -> None:
    """Refuse a `level` in percent of a `metric` whose own `targets` are shares.

    Only for a name such as accuracy: a metric of another name may well have levels above 1.

    Raises:
        UserError: with the share.
    """
    shares = falls_by_name(metric) is False and targets and all(0 < own <= 1 for own in targets)
    if shares and level > 1:
        given = level_text(level)
        way_out = f"write {given} % as {level / 100:g}" if level <= 100 else "use one of at most 1"
        raise UserError(
            f"{flag}{given}: the targets of {workload} are shares, {metric} "
            f"{', '.join(map(level_text, targets))}; {way_out}"
        )


def level_text(level: float) -> str:
    """`level` with as many digits as tell it from others: `0.77`, `1.9`, `1234567.5`."""
    short = f"{level:g}"
    return short if float(short) == level else repr(level)
