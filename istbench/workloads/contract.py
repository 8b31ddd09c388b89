"""What a workload gives istbench, checked where it is first used: a plug-in may give anything."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from numbers import Real
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.config.data_source import DataSource
from istbench.config.numbers import Count, CountOrNone, Epochs
from istbench.door import convert, path_text
from istbench.errors import UserError, shown
from istbench.plugin_code import plugin_line
from istbench.workloads.base import Batch, Workload

_ATTRIBUTES: tuple[tuple[str, Any], ...] = (
    ("batch_size", Count),
    ("epochs", Epochs),
    ("batches_ahead", CountOrNone),
    ("metric", Annotated[str, Meta(min_length=1, max_length=200)]),
)


def check_attributes(workload: Workload) -> None:
    """Refuse a `workload` whose class attributes are of another kind than the contract has.

    Raises:
        UserError: naming the attribute.
    """
    for name, kind in _ATTRIBUTES:
        convert(getattr(workload, name), kind, lambda _, name=name: f"{_named(workload)}: {name}")  # type: ignore[misc]


def blank_model(workload: Workload, *, data_known: bool) -> nn.Module:
    """The model on the meta device; `data_known` says whether `prepare` or `open` was called before.

    Raises:
        UserError: where `build_model` gives no model, or needs data before it is known.
    """
    try:
        with torch.device("meta"):
            model = workload.build_model()
    except UserError:
        raise
    except Exception as error:
        where = plugin_line(error)
        if where is None or data_known:
            raise
        raise UserError(
            f"{where}; build_model is called before prepare and open as well: set in __init__ whatever it reads "
            "(docs/plugins.md, Order of calls)"
        ) from None
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        what = "a module without parameters" if isinstance(model, nn.Module) else shown(model)
        raise UserError(f"{_named(workload)}: build_model must return a torch.nn.Module to train, not {what}")
    return model


def checked_source(workload: Workload, source: Any) -> DataSource:
    """What `prepare` gave, where it can be written down, and there is something to train and to test on.

    Raises:
        UserError: naming what is wrong with it.
    """
    if not isinstance(source, DataSource):
        raise UserError(f"{_named(workload)}: prepare must return a DataSource, not {shown(source)}")
    try:
        plain = msgspec.to_builtins(source)
    except TypeError as error:
        raise UserError(f"{_named(workload)}: prepare gives a DataSource that cannot be written: {error}") from None
    checked = convert(plain, DataSource, lambda path: f"{_named(workload)}: {path_text(path)} of its DataSource")
    for split, count in (("train", checked.train), ("test", checked.test)):
        if count == 0:
            raise UserError(f"{_named(workload)} has no {split} samples: its data set is empty; give it some")
    return checked


def checked_targets(workload: Workload) -> tuple[float, ...]:
    """The targets of `workload`, rising.

    Raises:
        UserError: where they are no levels that a report could show.
    """
    targets: Any = workload.targets
    numbers = None
    if isinstance(targets, Iterable) and not isinstance(targets, str | Mapping):
        numbers = [plain_number(target) for target in targets]
    if numbers is None or None in numbers:
        raise UserError(
            f"{_named(workload)}: targets must be levels of its metric, such as (0.5, 0.8), not {shown(targets)}"
        )
    levels = sorted(number for number in numbers if number is not None)
    for level in levels:
        if not 0 < level <= 1:
            raise UserError(
                f"{_named(workload)}: target {level:g} must be above 0 and at most 1, as its metric "
                f"{workload.metric} is: write 80 % as 0.8"
            )
    return tuple(levels)


def checked_metrics(workload: Workload, found: Any) -> dict[str, float]:
    """What `evaluate` gave as plain numbers. A tensor or an array of one number is one; NaN stays NaN.

    Raises:
        UserError: naming the metric that is missing, or no number.
    """
    if not isinstance(found, Mapping):
        raise UserError(f"{_named(workload)}: evaluate must return a dictionary of metrics, not {shown(found)}")
    metrics = {}
    for name, value in found.items():
        number = plain_number(value)
        if number is None or not isinstance(name, str):
            raise UserError(
                f"{_named(workload)}: evaluate gives metric {name!r} as {_kind(value)}; return a number"
            )
        metrics[name] = number
    if workload.metric not in metrics:
        given = ", ".join(sorted(metrics)) or "nothing"
        raise UserError(
            f"{_named(workload)}: evaluate must return its metric {workload.metric!r}, and returns {given}"
        )
    return metrics


def some_test_batches(workload: Workload) -> Iterator[Batch]:
    """The batches of the test split, at least one.

    Raises:
        UserError: where there is none.
    """
    batches = iter(workload.test_batches())
    first = next(batches, None)
    if first is None:
        raise UserError(f"{_named(workload)}: test_batches gives no batch to evaluate; give it test samples")
    return chain([first], batches)


def plain_number(value: Any) -> float | None:
    """`value` as a float; None where it is not one number."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.is_complex() else None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return shown(value) if shape is None else f"a {type(value).__name__} of shape {tuple(shape)}"


def _named(workload: Workload) -> str:
    return f"workload {workload.name!r}"
