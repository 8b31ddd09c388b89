"""`--hosts` and what belongs to it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
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


def _flag(context: click.Context, option: click.Parameter, value: bool) -> bool:
    _require_hosts(context, value or None, option.opts[0])
    if value and option.name == "stop" and context.params.get("detach"):
        raise UserError("--detach starts cells and --stop ends them; give one of the two")
    return value


def hosts_options(what: str, *, cells: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--hosts FILE|a,b,c` and the options that need it; `what` is the help of `--hosts`.

    cells: whether the command trains cells, and so has `--detach` and `--stop`.
    """

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
        detach = click.option(
            "--detach",
            is_flag=True,
            callback=_flag,
            help="Leave the cells to the first host and return; the same command without it follows them.",
        )
        stop = click.option(
            "--stop",
            is_flag=True,
            callback=_flag,
            help="End the cells of --detach, and copy their checkpoint here.",
        )
        install = click.option(
            "--install",
            is_flag=True,
            callback=_flag,
            help="Install this istbench on hosts without it, in an environment of its own under ~/.cache/istbench.",
        )
        # Eager: the others ask whether it was given.
        hosts = click.option("--hosts", metavar="FILE|a,b,c", callback=_parse, is_eager=True, help=what)
        return hosts(python(config(install(detach(stop(command)) if cells else command))))

    return add


def install_there(hosts: tuple[Host, ...], python: str | None, config: Path | None) -> None:
    """Install istbench on those of `hosts` that lack it; raises as `run_there`."""
    from istbench.hosts.install import install

    with _explaining():
        install(hosts, python, config, say)


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
    from istbench.hosts.detach import follow
    from istbench.hosts.run import HostsRun, run_on_hosts

    run = HostsRun(request=request, out=out, again=again)
    with _explaining():
        followed = follow(hosts, pythons(python), run, say, config)
        return followed or run_on_hosts(hosts, pythons(python), run, say, config)


def detach_there(
    asked: Sequence[tuple[RunRequest, tuple[Host, ...]]],
    python: str | None,
    config: Path | None,
    out: Path,
    again: bool,
) -> None:
    """Leave the cells to their first host, and return once the first of them starts; raises as `run_there`."""
    from istbench.hosts.connection import pythons
    from istbench.hosts.detach import detach
    from istbench.hosts.run import HostsRun

    cells = [(HostsRun(request=request, out=out, again=again), hosts) for request, hosts in asked]
    by = {"worked_by": "istbench.cli.detached_job", "named_by": "istbench.cli.cell_names"}
    with _explaining():
        detach(cells, pythons(python), config, say, **by)


def stop_there(
    requests: Sequence[RunRequest], hosts: tuple[Host, ...], python: str | None, config: Path | None, out: Path
) -> None:
    """End what `detach_there` left to the first of `hosts`; raises as `run_there`."""
    from istbench.hosts.connection import pythons
    from istbench.hosts.detach import stop
    from istbench.hosts.run import HostsRun

    with _explaining():
        stop(hosts, pythons(python), [HostsRun(request=request, out=out) for request in requests], config)


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    """Print a line for each problem of a host, the last one as a `UserError`."""
    from istbench.hosts.group import Unfit

    try:
        yield
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
