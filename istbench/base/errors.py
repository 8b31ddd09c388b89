"""Errors for users: one line that names the thing, the place and the way out."""

import difflib
from collections.abc import Iterable

_LONGEST_SHOWN = 60

_DIVERGED = "the loss became"


class UserError(Exception):
    """Wrong use or bad input. The command line prints the message as one line and exits with status 2."""


class NoSpace(UserError):  # noqa: N818
    """The disk is full. Another process may free space soon."""


class RunFailed(Exception):  # noqa: N818  (a name like KeyboardInterrupt)
    """A run started but did not finish. The command line prints the message and exits with status 1."""


def diverged(loss: float, place: str) -> RunFailed:
    """The error of a run whose `loss` is not finite at a `place` such as `step 7 on node 1`."""
    return RunFailed(f"{_DIVERGED} {loss:g} at {place}")


def is_divergence(message: str | None) -> bool:
    """Whether `message` is that of a `diverged` run. Between processes and in headers, errors are texts."""
    return message is not None and message.startswith(_DIVERGED)


def lacks_memory(error: BaseException) -> bool:
    """Whether an allocation failed. torch has an error type for GPU memory, and only a text for host memory."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "DefaultCPUAllocator" in str(error)


def unknown_name(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """A `UserError` for a `name` that is not among `known`, with the nearest valid name and all of them.

    where: its place in words, such as `of workload 'text'`.
    """
    return UserError(f"unknown {kind} {shown(name)}{where and f' {where}'}{nearest_name(name, known)}")


def nearest_name(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'? Known: x, y`, for the end of an error about `name`."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"{hint} Known: {', '.join(names) or 'none'}"


def clipped(text: str, width: int) -> str:
    """`text` in at most `width` characters, with an ellipsis in place of its end."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def printable(text: str) -> str:
    """`text` on one line, without escape sequences and characters outside UTF-8."""
    if text.isprintable():  # of lone surrogates, none is
        return text
    written = text.encode("utf-8", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in written)


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def shown(value: object) -> str:
    """The `repr` of `value`, shortened, on one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with too many digits for `repr`
        return "a value too large to show"
    text = " ".join(map(str.strip, text.splitlines()))
    return printable(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
