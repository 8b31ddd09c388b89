"""`--hosts` and what belongs to it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from istbench.config.run import RunRequest
from istbench.config.words import words_of
from istbench.errors import UserError, printable
from istbench.launch.hosts import Host, parse_hosts
from istbench.results.store import RunDirectory


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


def words_there(request: RunRequest, *, again: bool) -> tuple[str, ...]:
    """The words of istbench by which hosts run `request`: how many nodes there are they know by themselves."""
    return (*words_of(dataclasses.replace(request, nodes=1)), *(["--again"] if again else []))


def run_there(
    hosts: tuple[Host, ...], python: str | None, request: RunRequest, out: Path, again: bool
) -> RunDirectory:
    """Run `request` on `hosts`; returns the run directory, here.

    Raises:
        UserError: where they cannot train it, after a line for each thing that is wrong.
        RunFailed: naming the host.
    """
    from istbench.launch.ssh.connection import pythons
    from istbench.launch.ssh.group import Unfit
    from istbench.launch.ssh.run import HostsRun, run_on_hosts

    paths = tuple(str(path) for path in (request.data, *request.plugins) if path is not None)
    asked = HostsRun(words=words_there(request, again=again), paths=paths, out=out, again=again)
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
