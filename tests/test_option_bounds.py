"""Every option of every method and workload has bounds, and what is outside them is refused in one line."""

import dataclasses
import types
import typing
from typing import Literal

import pytest
from msgspec import Meta

from istbench.base.errors import UserError
from istbench.node.registry import build_method, build_workload, load_method, load_workload, registered

METHODS = [entry.name for entry in registered("methods")]
WORKLOADS = [entry.name for entry in registered("workloads")]
BUILD = {**dict.fromkeys(METHODS, build_method), **dict.fromkeys(WORKLOADS, build_workload)}
OPTIONS = {
    **{name: load_method(name).Options for name in METHODS},
    **{name: load_workload(name).Options for name in WORKLOADS},
}
EVERY_OPTION = [(name, field.name) for name, options in OPTIONS.items() for field in dataclasses.fields(options)]
HUGE, NAN, INF = 10**400, float("nan"), float("inf")
STRANGE = [
    HUGE, -HUGE, 10**12, 2**63, -1, 0, True, None, NAN, INF, -INF, 1e300, 5e-324, -0.0, 0.5, [], {}, "",
    "nan", "inf", "-inf", "1e300", "1" + "0" * 400, "0x10", "1_0", "\x1b[31m", "\udcff",
]  # fmt: skip


def parts(kind):
    """The types that an option's type consists of, without None."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return [option for option in options if option is not type(None)]


@pytest.mark.parametrize(("name", "option"), EVERY_OPTION)
def test_every_number_has_bounds_in_its_type(name, option):
    kind = typing.get_type_hints(OPTIONS[name], include_extras=True)[option]
    for part in parts(kind):
        if part is bool or typing.get_origin(part) is Literal:
            continue
        bounds = [said for said in getattr(part, "__metadata__", ()) if isinstance(said, Meta)]
        several = typing.get_args(part)[0] if bounds else part
        if typing.get_origin(several) is tuple:
            assert any(said.max_length is not None for said in bounds), kind
            part = typing.get_args(several)[0]
            bounds = [said for said in getattr(part, "__metadata__", ()) if isinstance(said, Meta)]
        if typing.get_args(part)[:1] == (str,):
            assert any(said.max_length is not None for said in bounds), kind
            continue
        assert any(said.ge is not None or said.gt is not None for said in bounds), kind
        assert any(said.le is not None or said.lt is not None for said in bounds), kind


@pytest.mark.parametrize(("name", "option"), EVERY_OPTION)
def test_a_strange_value_is_taken_or_refused_in_one_line_that_names_it(name, option):
    said, taken = [], []
    for value in STRANGE:
        try:
            taken.append(getattr(BUILD[name](name, {option: value}).options, option))
        except UserError as error:
            said.append(str(error))
    assert len(said) > len(STRANGE) / 2
    assert all(option in text and name in text and text.isprintable() and len(text) < 300 for text in said), said
    assert {type(value) for value in taken} <= {type(getattr(OPTIONS[name](), option))}
    numbers = [value for value in taken if not isinstance(value, str | tuple)]
    assert all(abs(value) <= 2**53 for value in numbers)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("ist", {"lr": 1e300}, "option lr must be a number of at most 1e+06, not 1e+300"),
        ("ddp", {"lr": "nan"}, "option lr must be a number of at least 0, not 'nan'"),
        ("ddp", {"lr": INF}, "option lr must be a number of at most 1e+06, not inf"),
        ("p3", {"momentum": NAN}, "option momentum must be a number of at least 0, not nan"),
        ("local_sgd", {"momentum": 1}, "option momentum must be a number below 1, not 1"),
        ("toy", {"hidden": HUGE}, "option hidden must be a whole number of at most 16777216"),
        ("toy", {"hidden": True}, "option hidden must be a whole number, not True"),
        ("p3", {"priority": 1}, "option priority must be true or false, not 1"),
        ("ddp", {"decay_at": "0.5,1"}, "option decay_at must be a number below 1, not '1'"),
        ("ddp", {"decay_at": ["half"]}, "option decay_at must be a number, not 'half'"),
        ("ddp", {"decay_at": 0.5}, "decay_at is an option of schedule=step, not of constant"),
        ("ist", {"schedule": "cosine", "decay": 0.5}, "decay is an option of schedule=step, not of cosine"),
        ("p3", {"nesterov": True}, "nesterov needs momentum, which is 0; set momentum=0.9"),
    ],
)
def test_what_is_wrong_and_what_would_be_right(name, given, says):
    with pytest.raises(UserError) as caught:
        BUILD[name](name, given)
    assert says in str(caught.value)
