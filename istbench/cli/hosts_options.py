"""`--hosts` and what belongs to it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from istbench.cli.options import PathType
from istbench.config.run import RunRequest
from istbench.door import read_bytes
from istbench.errors import UserError, printable
from istbench.hosts.names import Host, parse_hosts
from istbench.results.store import RunDirectory


def _parse(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[Host, ...] | None:
    return None if text is None else parse_hosts(text)


def _python(context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    _require_hosts(context, text, "--hosts-python")
    if text is not None and (not text.strip() or text.startswith("-") or not text.isprintable()):
        raise UserError("--hosts-python must be the path of a Python")
    return text


def _config(context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    _require_hosts(context, path, "--ssh-config")
    if path is not None:
        read_bytes(path, "a configuration file of ssh's, as ~/.ssh/config is")
    return path


def _require_hosts(context: click.Context, value: object, flag: str) -> None:
    if value is not None and context.params.get("hosts") is None:
        raise UserError(f"{flag} is for the hosts of --hosts; give --hosts as well, or leave {flag} out")


def hosts_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--hosts FILE|a,b,c`, `--hosts-python PATH` and `--ssh-config FILE`; `what` is done there."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        python = click.option(
            "--hosts-python",
            metavar="PATH",
            callback=_python,
            help="Python on the hosts. Default: the same path as here, else python3.",
        )
        config = click.option(
            "--ssh-config",
            type=PathType(),
            metavar="FILE",
            callback=_config,
            help="File that ssh reads for --hosts instead of ~/.ssh/config: keys, known hosts, jump hosts.",
        )
        # Eager: the other two ask whether it was given.
        hosts = click.option("--hosts", metavar="FILE|a,b,c", callback=_parse, is_eager=True, help=what)
        return hosts(python(config(command)))

    return add


def run_there(
    hosts: tuple[Host, ...],
    python: str | None,
    config: Path | None,
    request: RunRequest,
    out: Path,
    again: bool,
) -> RunDirectory:
    """Run `request` on `hosts`, which ssh reaches by `config`; returns the run directory, here.

    Raises:
        UserError: where they cannot train it, after a line for each thing that is wrong.
        RunFailed: naming the host.
    """
    from istbench.hosts.connection import pythons
    from istbench.hosts.group import Unfit
    from istbench.hosts.run import HostsRun, run_on_hosts

    try:
        return run_on_hosts(hosts, pythons(python), HostsRun(request=request, out=out, again=again), say, config)
    except Unfit as unfit:
        *others, last = unfit.problems
        for problem in others:
            say(f"istbench: {problem}")
        raise UserError(last) from None


def finished_there(
    asked: Sequence[tuple[RunRequest, tuple[Host, ...]]], python: str | None, config: Path | None, out: Path
) -> list[RunDirectory | None]:
    """The run directories, here, of requests that are done; None for others, and where hosts cannot tell.

    asked: requests, each with the hosts to run it on.
    """
    from istbench.hosts.connection import pythons
    from istbench.hosts.finished import finished
    from istbench.hosts.group import Unfit
    from istbench.hosts.run import HostsRun

    cells = [(HostsRun(request=request, out=out), hosts) for request, hosts in asked]
    try:
        return finished(cells, pythons(python), config, say, by="istbench.cli.cell_names")
    except Unfit:  # the run that follows says so
        return [None] * len(asked)


def say(text: str) -> None:
    """A line on standard error."""
    click.echo(printable(text), err=True)
