"""`--hosts` and what belongs to it: a command as other hosts are to run it."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from istbench.config.run import RunRequest
from istbench.errors import UserError, printable
from istbench.launch.hosts import Host, parse_hosts
from istbench.results.store import RunDirectory

_WORDS = "istbench.words"


def _parse(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[Host, ...] | None:
    return None if text is None else parse_hosts(text)


def _python(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and (not text.strip() or text.startswith("-") or not text.isprintable()):
        raise UserError("--hosts-python must be the path of a Python")
    return text


def hosts_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--hosts FILE|a,b,c` and `--hosts-python PATH`; `what` is done there."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        python = click.option(
            "--hosts-python",
            metavar="PATH",
            callback=_python,
            help="Python on the hosts. Default: the same path as here, else python3.",
        )
        hosts = click.option("--hosts", metavar="FILE|a,b,c", callback=_parse, help=what)
        return hosts(python(command))

    return add


class KeepsWords(click.Command):
    """A command that remembers what was typed, for `typed_words`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, beside remembering."""
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


def typed_words(context: click.Context, left_out: Collection[str]) -> list[str]:
    """The options that were typed, to be run again; those of the parameters that are `left_out` are."""
    given, _, _ = context.command.make_parser(context).parse_args(list(context.meta[_WORDS]))
    words = []
    for parameter in context.command.params:
        if parameter.name not in given or parameter.name in left_out or not isinstance(parameter, click.Option):
            continue
        value, flag = given[parameter.name], parameter.opts[0]
        if parameter.is_flag:
            words.append(flag if value else parameter.secondary_opts[0])
            continue
        words += [f"{flag}={one}" for one in (value if isinstance(value, list) else [value])]
    return words


def run_there(
    hosts: tuple[Host, ...], python: str | None, words: tuple[str, ...], request: RunRequest, out: Path, again: bool
) -> RunDirectory:
    """Run `request` by `words` of istbench on `hosts`; returns the run directory, here.

    Raises:
        UserError: where they cannot train it, after a line for each thing that is wrong.
        RunFailed: naming the host.
    """
    from istbench.launch.ssh.connection import pythons
    from istbench.launch.ssh.group import Unfit
    from istbench.launch.ssh.run import HostsRun, run_on_hosts

    paths = tuple(str(path) for path in (request.data, *request.plugins) if path is not None)
    asked = HostsRun(words=words, paths=paths, out=out, again=again)
    try:
        return run_on_hosts(hosts, pythons(python), asked, say)
    except Unfit as unfit:
        *others, last = unfit.problems
        for problem in others:
            say(f"istbench: {problem}")
        raise UserError(last) from None


def say(text: str) -> None:
    """A line on standard error."""
    click.echo(printable(text), err=True)
