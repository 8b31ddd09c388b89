"""Entries that installed packages add to a table of istbench."""

from importlib.metadata import entry_points
from typing import Any

from istbench.base.errors import UserError


def from_packages(group: str, kind: type) -> list[Any]:
    """The objects of entry points `istbench.GROUP`, by name; each must be a `kind`.

    Raises:
        UserError: naming an entry that does not load, or is of another type.
    """
    found = []
    for point in sorted(entry_points(group=f"istbench.{group}"), key=lambda point: point.name):
        where = f"entry point {point.name} = {point.value} of istbench.{group}"
        try:
            entry = point.load()
        except Exception as error:  # a package may raise anything
            raise UserError(f"{where} does not load: {type(error).__name__}: {error}") from error
        if not isinstance(entry, kind):
            raise UserError(f"{where} must be a {kind.__name__}, not a {type(entry).__name__}")
        found.append(entry)
    return found
