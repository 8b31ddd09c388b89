"""Write the reference of all commands, the second part of docs/commands.md, from the commands themselves.

    python docs/commands.py

The first part of the page, above `MARK`, is written by hand.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from istbench.cli import COMMANDS, cli
from istbench.cli.options import SectionedCommand, sections

PAGE = Path(__file__).with_name("commands.md")
MARK = "<!-- docs/commands.py writes the rest of this page: change the help of the commands -->\n"
_WIDTH = 116
_CODE = re.compile(r"(`[^`]*`)")
_FLAG = re.compile(r"(?<![\w'-])(--[a-z][a-z-]*|-h)\b")
_VALUES = {"INTEGER": "N", "INTEGER RANGE": "N", "FLOAT": "NUMBER", "FLOAT RANGE": "NUMBER"}
_SHARED = ("run", "compare")
"""Commands with sections of options that others have too: those name the section of the first here."""


def page() -> str:
    """The text of the page: what stands above `MARK`, and the reference."""
    by_hand = PAGE.read_text().partition(MARK)[0]
    return by_hand + MARK + "\n" + "\n".join(_reference())


def _reference() -> Iterator[str]:
    context = click.Context(cli, info_name="istbench")
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    yield "## All commands\n"
    for name in commands:
        yield _wrapped(f"- [{name}](#istbench-{name}): {COMMANDS[name]}", "  ")
    yield ""
    shared = dict[str, str]()
    for name in _SHARED:
        for _, lines in _sections(commands[name]):
            shared.setdefault(lines, f"istbench {name}")
    for name, command in commands.items():
        yield from _entry(f"istbench {name}", command, shared)
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            for part in command.list_commands(inner):
                found = command.get_command(inner, part)
                if found is not commands.get(part):
                    yield from _entry(f"istbench {name} {part}", found, shared)


def _entry(title: str, command: Any, shared: dict[str, str]) -> Iterator[str]:
    yield f"## {title}\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```\n{paragraph[1:].strip()}\n```\n"
        else:
            yield _wrapped(_marked(paragraph)) + "\n"
    arguments = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    options = ["[OPTIONS]"] if len(arguments) < len(command.params) else []
    inner = ["COMMAND..."] if isinstance(command, click.Group) else []
    yield f"`{' '.join([title, *options, *arguments, *inner])}`\n"
    for section, lines in _sections(command):
        first = shared.get(lines, title)
        if first != title:
            yield f"**{section}**: as of [{first.split()[1]}](#{first.replace(' ', '-')}).\n"
        else:
            yield f"**{section}**\n\n{lines}" if section else lines


def _argument(argument: click.Argument) -> str:
    shown = argument.metavar or (
        _value(argument.type) if isinstance(argument.type, click.Choice) else (argument.name or "").upper()
    )
    return shown if argument.required or shown.startswith(("[", "--")) else f"[{shown}]"


def _sections(command: Any) -> Iterator[tuple[str, str]]:
    """The sections of the options of `command`, each with its lines; one without a title where help has none."""
    if isinstance(command, SectionedCommand):
        found = sections(command.params)
    else:
        found = {"": [one for one in command.params if isinstance(one, click.Option) and not one.hidden]}
    for title, options in found.items():
        if options:
            yield title, "".join(f"{_wrapped(_line(option), '  ')}\n" for option in options)


def _line(option: click.Option) -> str:
    flags = ", ".join([*option.opts, *option.secondary_opts])
    value = (
        "" if option.is_flag else f" {_VALUES.get(option.metavar or '') or option.metavar or _value(option.type)}"
    )
    default = _default(option)
    ends = [*([f"Default: `{default}`."] if default else []), *(["Required."] * option.required)]
    return " ".join([f"- `{flags}{value}`:", _marked(option.help or ""), *ends])


def _value(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    return _VALUES.get(kind.name.upper(), kind.name.upper())


def _default(option: click.Option) -> str:
    if not option.show_default or option.default in (None, ()) or option.is_flag:
        return ""
    return option.show_default if isinstance(option.show_default, str) else str(option.default)


def _marked(text: str) -> str:
    """`text` on one line, with its flags as code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if place % 2 else _FLAG.sub(r"`\1`", part) for place, part in enumerate(parts))


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page())
