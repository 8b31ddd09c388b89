"""Errors a user can act on: one line that names the thing, the place and the way out."""

import difflib
from collections.abc import Iterable

_LONGEST_SHOWN = 60


class UserError(Exception):
    """Wrong use or bad input. The command line prints the message as one line and exits with status 2."""


class RunFailed(Exception):  # noqa: N818  (the name says what happened, as KeyboardInterrupt does)
    """A run that started correctly did not finish. The command line prints the message and exits with 1."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """A `UserError` for a `name` that is not among `known`, with the nearest valid name and all of them."""
    return UserError(f"unknown {kind} {shown(name)}{nearest_name(name, known)}")


def nearest_name(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'? Known: x, y`, for the end of an error about `name`."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"{hint} Known: {', '.join(names) or 'none'}"


def printable(text: str) -> str:
    """`text` on one line, without escape sequences and what UTF-8 cannot write."""
    written = text.encode("utf-8", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in written)


def shown(value: object) -> str:
    """`value` as Python writes it, on one line and not too long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        return "a value too large to show"
    return printable(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
