"""TOML: its tables, and the line of a value."""

import re
import tomllib
from collections.abc import Callable
from typing import Any

from istbench.base.errors import UserError, printable

_LONGEST_KEY = 60
Locate = Callable[[tuple[str | int, ...]], str]
"""Gives the place of the value at a path of keys and indices, in words."""


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table in TOML `text`; `where` names its file.

    Raises:
        UserError: with file and line, if it is not TOML or nested too deep.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        number = int(line[1]) if line else max(1, len(text.splitlines()))
        raise UserError(f"{where}, line {number}: not TOML ({printable(str(error))}); correct that line") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deep; write it flat") from None
    except ValueError as error:  # an integer of thousands of digits
        raise UserError(f"{where}: not TOML ({printable(str(error))}); correct it") from None


def toml_lines(text: str, where: str) -> Locate:
    """A function that gives the place of a value in TOML `text`: file, line and name."""

    def locate(path: tuple[str | int, ...]) -> str:
        return f"{where}, line {toml_line(text, path)}: {path_text(path) or 'it'}"

    return locate


def toml_line(text: str, path: tuple[str | int, ...]) -> int:
    """The line, from 1, that sets the value at `path`. In a list of tables, the search stays in the right table."""
    lines = text.splitlines()
    first = 0
    for number, key in enumerate(path):
        if not isinstance(key, str):
            continue
        after = path[number + 1] if number + 1 < len(path) else 0
        times = after + 1 if isinstance(after, int) else 1
        array = re.compile(rf"""\s*\[\[\s*(?:[\w-]+\.)*["']?{re.escape(key)}["']?\s*\]\]""")
        single = re.compile(rf"""\s*(?:\[\s*)?(?:[\w-]+\.)*["']?{re.escape(key)}["']?\s*[=.\]]""")
        inline = re.compile(rf"""[{{,]\s*["']?{re.escape(key)}["']?\s*=""")
        headers = [place for place, line in enumerate(lines) if place >= first and array.match(line)]
        if headers:
            first = headers[min(times, len(headers)) - 1]
            continue
        rest = range(first, len(lines))
        found = next((place for place in rest if single.match(lines[place])), None)
        if found is None:
            found = next((place for place in rest if inline.search(lines[place])), first)
        first = found
    return first + 1


def path_text(path: tuple[str | int, ...]) -> str:
    """`path` in words: `suite[1].run.steps`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key[:_LONGEST_KEY]}" if text else key[:_LONGEST_KEY]
    return printable(text)
