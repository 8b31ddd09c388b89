"""Entries that installed packages add to a table."""

from types import SimpleNamespace

import pytest

from istbench.base import entry_points
from istbench.base.entry_points import with_packages
from istbench.base.errors import UserError

OWN = [SimpleNamespace(name="sgd")]


def table(monkeypatch, **loads):
    points = [SimpleNamespace(name=name, value=f"others:{name}", load=load) for name, load in loads.items()]
    monkeypatch.setattr(entry_points, "entry_points", lambda group: points)
    return with_packages(OWN, "optimizers", SimpleNamespace)


def test_entries_of_packages_stand_behind_those_of_istbench(monkeypatch):
    found = table(monkeypatch, sign=lambda: SimpleNamespace(name="sign"))
    assert [entry.name for entry in found] == ["sgd", "sign"]


def test_an_entry_of_a_name_that_is_taken_is_refused(monkeypatch):
    with pytest.raises(
        UserError, match=r"entry point mine = others:mine of istbench.optimizers: .* an entry sgd too"
    ):
        table(monkeypatch, mine=lambda: SimpleNamespace(name="sgd"))


@pytest.mark.parametrize(
    ("load", "said"), [(lambda: 1 / 0, "does not load: ZeroDivisionError"), (int, "not a int")]
)
def test_an_entry_that_cannot_be_used_is_named(monkeypatch, load, said):
    with pytest.raises(UserError, match=said):
        table(monkeypatch, mine=load)
