"""Checks of a workload's attributes and return values at their first use: a plug-in may return anything."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from numbers import Real
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.base.decode import convert, path_text
from istbench.base.error_lines import TASK_FILE, error_line
from istbench.base.errors import UserError, shown
from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import Count, CountOrNone, Epochs, Levels
from istbench.base.options.texts import LONGEST_TEXT
from istbench.results.header import Unit
from istbench.results.metrics import Metric, check_share, falls_by_name
from istbench.workloads.base import Batch, Workload

_ATTRIBUTES: tuple[tuple[str, Any], ...] = (
    ("batch_size", Count),
    ("epochs", Epochs),
    ("batches_ahead", CountOrNone),
    ("metric", Annotated[str, Meta(min_length=1, max_length=200)]),
    ("lower_is_better", bool),
    ("unit", Unit),
)


def check_attributes(workload: Workload) -> None:
    """Refuse a `workload` whose class attributes have a type or value outside the contract.

    Raises:
        UserError: naming the attribute.
    """
    for name, kind in _ATTRIBUTES:
        convert(getattr(workload, name), kind, lambda _, name=name: f"{workload.in_errors}: {name}")  # type: ignore[misc]
    if falls_by_name(workload.metric) and not _declares(workload, "lower_is_better"):
        raise UserError(
            f"{workload.in_errors}: its metric {workload.metric!r} falls as a model gets better, by its name; set "
            "lower_is_better = True beside it, or False if it rises"
        )


def metric_of(workload: Workload) -> Metric:
    """The metric of `workload`, with its direction and unit."""
    return Metric(workload.metric, lower_is_better=workload.lower_is_better, unit=workload.unit)


def blank_model(workload: Workload, *, data_known: bool = True) -> nn.Module:
    """Build the model on the meta device; `data_known` tells whether `prepare` or `open` came before.

    Raises:
        UserError: if `build_model` returns no model, or needs `prepare` or `open` first.
    """
    try:
        with torch.device("meta"):
            model = workload.build_model()
    except UserError:
        raise
    except Exception as error:
        where = error_line(error)
        if where is None or data_known or where.startswith(TASK_FILE):
            raise
        raise UserError(
            f"{where}; istbench also calls build_model before prepare and open: set its attributes in __init__ "
            "(docs/plugins.md, Order of calls)"
        ) from None
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        what = "a module without parameters" if isinstance(model, nn.Module) else shown(model)
        raise UserError(f"{workload.in_errors}: build_model must return a torch.nn.Module to train, not {what}")
    return model


def wrong_source(workload: Workload, source: Any, function: str = "prepare") -> UserError:
    """The error of a `source` that is no `DataSource`."""
    return UserError(f"{workload.in_errors}: {function} must return a DataSource, not {shown(source)}")


def checked_source(workload: Workload, source: Any, function: str = "prepare") -> DataSource:
    """The `source` that `prepare` returned, if it can be written to the run header and no split is empty.

    function: `prepare`, or the function that returned `source` in its place, for errors.

    Raises:
        UserError: naming the mistake.
    """
    if not isinstance(source, DataSource):
        raise wrong_source(workload, source, function)
    try:
        plain = msgspec.to_builtins(source)
    except TypeError as error:
        raise UserError(
            f"{workload.in_errors}: {function} returns a DataSource that is not valid JSON: {error}"
        ) from None
    checked = convert(plain, DataSource, lambda path: f"{workload.in_errors}: {path_text(path)} of its DataSource")
    for split, count in (("train", checked.train), ("test", checked.test)):
        if count == 0:
            raise UserError(f"{workload.in_errors} has no {split} samples: its data set is empty; add samples")
    return checked


def checked_targets(workload: Workload) -> tuple[float, ...]:
    """The targets of `workload`, the easiest first.

    Raises:
        UserError: if they are not finite numbers.
    """
    targets: Any = workload.targets
    numbers = None
    if isinstance(targets, Iterable) and not isinstance(targets, str | Mapping):
        numbers = [plain_number(target) for target in targets]
    if numbers is None or None in numbers:
        raise UserError(
            f"{workload.in_errors}: targets must be levels of its metric, such as (0.5, 0.8), not {shown(targets)}"
        )
    levels: tuple[float, ...] = convert(
        numbers, Levels, lambda path: f"{workload.in_errors}: {'a target' if path else 'targets'}"
    )
    return metric_of(workload).easiest_first(levels)


def check_target(workload: Workload, target: float) -> None:
    """Refuse a `target` in percent of a metric whose own targets are shares.

    Only for a name such as accuracy: a metric of another name may well have levels above 1.

    Raises:
        UserError: with the share.
    """
    check_share(target, workload.metric, checked_targets(workload), workload.name, "--target ")


def checked_metrics(workload: Workload, found: Any) -> dict[str, float]:
    """The metrics that `evaluate` returned, as floats, from numbers, tensors or arrays of one number.

    Raises:
        UserError: naming a metric that is missing, or not a number.
    """
    if not isinstance(found, Mapping):
        raise UserError(f"{workload.in_errors}: evaluate must return a dictionary of metrics, not {shown(found)}")
    metrics = {}
    for name, value in found.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_TEXT or not name.isprintable():
            raise UserError(
                f"{workload.in_errors}: evaluate returns a metric under {shown(name)}; name it in one line of "
                f"at most {LONGEST_TEXT:,} letters"
            )
        number = plain_number(value)
        if number is None:
            raise UserError(
                f"{workload.in_errors}: evaluate returns metric {name!r} as {_kind(value)}; return a number"
            )
        metrics[name] = number
    if workload.metric not in metrics:
        given = ", ".join(sorted(metrics)) or "nothing"
        raise UserError(
            f"{workload.in_errors}: evaluate must return its metric {workload.metric!r}; it returns {given}"
        )
    return metrics


def some_test_batches(workload: Workload) -> Iterator[Batch]:
    """The batches of the test split.

    Raises:
        UserError: if there is none.
    """
    batches = iter(workload.test_batches())
    first = next(batches, None)
    if first is None:
        raise UserError(f"{workload.in_errors}: test_batches yields no batch to evaluate; add test samples")
    return chain([first], batches)


def plain_number(value: Any) -> float | None:
    """`value` as a float; None if it is not one number."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.is_complex() else None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None


def _declares(workload: Workload, attribute: str) -> bool:
    """Whether `workload` or a class of it has its own value of an `attribute` of `Workload`."""
    owners = [workload, *(kind for kind in type(workload).__mro__ if kind is not Workload)]
    return any(attribute in vars(owner) for owner in owners)


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return shown(value) if shape is None else f"a {type(value).__name__} of shape {tuple(shape)}"
