"""Entries that installed packages add to a table of istbench."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from istbench.base.errors import UserError


def with_packages(own: Sequence[Any], group: str, kind: type[Any]) -> tuple[Any, ...]:
    """The entries `own` of istbench, then the objects of entry points `istbench.GROUP`, each a `kind`, by name.

    Raises:
        UserError: naming an entry that does not load, is of another type, or has the name of one before.
    """
    found = list(own)
    for point in sorted(entry_points(group=f"istbench.{group}"), key=lambda point: point.name):
        where = f"entry point {point.name} = {point.value} of istbench.{group}"
        try:
            entry = point.load()
        except Exception as error:  # a package may raise anything
            raise UserError(f"{where} does not load: {type(error).__name__}: {error}") from error
        if not isinstance(entry, kind):
            raise UserError(f"{where} must be a {kind.__name__}, not a {type(entry).__name__}")
        if any(entry.name == other.name for other in found):
            raise UserError(f"{where}: istbench or another package has an entry {entry.name} too; uninstall one")
        found.append(entry)
    return tuple(found)
