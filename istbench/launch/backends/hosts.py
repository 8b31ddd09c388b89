"""Cells on other hosts, which this machine reaches over ssh: `--hosts`."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from istbench.base.decode import read_bytes
from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Backend, BackendOption, Outcome, Screen, described, on_hosts
from istbench.launch.hosts.names import Host, first_of, parse_hosts
from istbench.launch.processes.failures import WorkerLost
from istbench.results.store import RunDirectory

if TYPE_CHECKING:
    from istbench.launch.hosts.run import HostsRun

Say = Callable[[str], None]

REACHING = (
    BackendOption(
        flag="--hosts",
        metavar="FILE|a,b,c",
        help="Use these hosts over ssh, one node each. FILE has one host a line, with slots=N for N nodes.",
    ),
    BackendOption(
        flag="--hosts-python",
        metavar="PATH",
        help="Python on the hosts. Default: the same path as here, else python3.",
    ),
    BackendOption(
        flag="--ssh-config",
        metavar="FILE",
        kind=Path,
        help="File that ssh reads for --hosts instead of ~/.ssh/config: keys, known hosts, jump hosts.",
    ),
    BackendOption(
        flag="--install",
        kind=bool,
        help="Install this istbench on hosts without it, in its own environment under ~/.cache/istbench.",
    ),
)
"""The options that name hosts and the way to them."""


@dataclass(frozen=True, kw_only=True)
class Hosts(Backend):
    """Hosts with a node for each slot. Each cell runs on the first hosts that have enough slots for it.

    Attributes:
        python: the Python on the hosts; None for the default. has_installed: whether `install` is done.
        ssh_config: the file that ssh reads instead of the user's own; None for that one.
        install: install istbench on hosts that lack it. detach: leave the cells to the first host.
        stop: end the cells that an earlier command left there.
        restarts, spares: as `run_with_restarts` takes them.
    """

    chosen_by: ClassVar[str] = "--hosts"
    choices: ClassVar[tuple[BackendOption, ...]] = (
        *REACHING,
        BackendOption(
            flag="--spare",
            metavar="FILE|d,e",
            help="Hosts that take the place of those of --hosts that are gone.",
        ),
        BackendOption(
            flag="--detach",
            kind=bool,
            help="Leave the cells to the first host and return; the same command without it follows them.",
        ),
        BackendOption(
            flag="--stop",
            kind=bool,
            help="End the cells of --detach, and copy their checkpoint here.",
        ),
    )
    hosts: tuple[Host, ...]
    python: str | None = None
    ssh_config: Path | None = None
    install: bool = False
    has_installed: bool = False
    detach: bool = False
    stop: bool = False
    restarts: int = 0
    spares: tuple[Host, ...] = ()

    @classmethod
    def chosen(cls, given: Mapping[str, Any]) -> "Hosts | None":
        """The hosts that the values of the options name, None if they name none.

        Raises:
            UserError: if a value is wrong, or an option needs hosts that are not named.
        """
        text, python, config = given.get("hosts"), given.get("hosts_python"), given.get("ssh_config")
        if text is None:
            for option in cls.choices:
                if given.get(option.name) not in (None, False):
                    raise UserError(
                        f"{option.flag} is for the hosts of --hosts; give --hosts as well, or leave "
                        f"{option.flag} out"
                    )
            return None
        hosts = parse_hosts(text)
        if python is not None and (not python.strip() or python.startswith("-") or not python.isprintable()):
            raise UserError("--hosts-python must be the path of a Python")
        if config is not None:
            read_bytes(config, "an ssh configuration file, such as ~/.ssh/config")
        detach, stop = bool(given.get("detach")), bool(given.get("stop"))
        if detach and stop:
            raise UserError("--detach starts cells and --stop ends them; give one of the two")
        install, spares = bool(given.get("install")), _spares(given.get("spare"), hosts)
        if spares and (detach or stop):
            other = "--detach" if detach else "--stop"
            raise UserError(f"--spare is for cells that this machine watches; leave out --spare, or {other}")
        return cls(
            hosts=hosts, python=python, ssh_config=config, install=install, detach=detach, stop=stop, spares=spares
        )

    def restarting(self, restarts: int, *, typed: bool) -> "Hosts":
        if typed and restarts and self.stop:
            raise UserError("--restarts starts cells again, and --stop ends them; leave one of the two out")
        return dataclasses.replace(self, restarts=restarts)

    @property
    def nodes(self) -> int:
        return sum(host.slots for host in self.hosts)

    def fit(self, request: RunRequest) -> RunRequest:
        self.require_restarts(request)
        if request.elastic is not None and self.detach:
            raise UserError(
                f"--elastic {request.elastic}: this machine looks for the hosts that are left; leave out "
                "--detach, or --elastic"
            )
        return on_hosts(request, [host.slots for host in first_of(self.hosts, request.nodes)])

    def installed(self, say: Say) -> "Hosts":
        """These hosts, all with istbench where the user wants it installed.

        Raises:
            UserError, RunFailed: if a host cannot get it, after a line for each other problem.
        """
        if not self.install:
            return self
        from istbench.launch.hosts.install import install

        with _explaining(say):
            hosts = (*self.hosts, *self.spares)
            install(hosts, self.python, self.ssh_config, say, leave_out=bool(self.spares))
        return dataclasses.replace(self, install=False, has_installed=True)

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        def say(text: str) -> None:
            screen.note(printable(text))

        yield from self.installed(say)._run(cells, out, again, say)

    def _run(self, cells: Sequence[RunRequest], out: Path, again: bool, say: Say) -> Iterator[Outcome]:
        from istbench.launch.hosts.detached import detach, stop
        from istbench.launch.hosts.finished_cells import finished

        runs, left, began = [self._cell(request, out, again) for request in cells], [], False
        if self.stop:
            with _explaining(say):
                stop(runs)
        for run, done in zip(runs, finished(runs, say), strict=True):
            if done is not None:
                say(done.header().data_source.note)
                yield Outcome(cell=done.path.name, run=done, fresh=False)
            elif self.detach:
                left.append(run)
            else:
                outcome = self._trained(run, say, began)
                began = began or outcome.run is not None
                yield outcome
        if left:
            with _explaining(say):
                detach(left, say)
        for run in left:
            yield Outcome(cell=described(run.request), running=True)

    def _trained(self, run: "HostsRun", say: Say, began: bool) -> Outcome:
        """The outcome of `run`: follow its cell if an earlier command left it to the first host.

        began: whether the hosts have trained. If one is gone then, it is a loss: another try may end well.
        """
        from istbench.launch.hosts.detached import follow
        from istbench.launch.hosts.group import Unfit
        from istbench.launch.hosts.restarts import run_with_restarts

        names: list[str] = []
        try:
            with _explaining(say):
                found = follow(run, say, stopped=self.stop, started=names.append)
                if found is None and self.stop:
                    raise UserError(
                        f"nothing of it runs detached on {self.hosts[0].name}; the same command without --stop "
                        "trains it"
                    )
                try:
                    directory = found or run_with_restarts(run, say, names.append)
                except Unfit as unfit:
                    if not unfit.gone or not (began or names):
                        raise
                    raise WorkerLost("; ".join(unfit.problems)) from None
        except (RunFailed, UserError) as error:
            here = RunDirectory.of(run.out, names[-1]) if names and names[-1] else None
            known = here if here is not None and here.exists() else None
            return Outcome(cell=described(run.request), request=run.request, run=known, failure=error)
        return Outcome(cell=directory.path.name, request=run.request, run=directory)

    @property
    def pythons(self) -> list[str]:
        """The names of Pythons to look for on the hosts."""
        from istbench.launch.hosts.connection import pythons

        return pythons(self.python, installing=self.has_installed)

    def _cell(self, request: RunRequest, out: Path, again: bool) -> "HostsRun":
        from istbench.launch.hosts.run import HostsRun

        return HostsRun(
            request=request,
            out=out,
            again=again,
            hosts=first_of(self.hosts, request.nodes),
            pythons=self.pythons,
            config=self.ssh_config,
            restarts=self.restarts,
            spares=self.spares,
        )


@contextlib.contextmanager
def _explaining(say: Say) -> Iterator[None]:
    """Print a line for each problem of a host, the last one as a `UserError`."""
    from istbench.launch.hosts.group import Unfit

    try:
        yield
    except Unfit as unfit:
        *others, last = unfit.problems
        for problem in others:
            say(f"istbench: {problem}")
        raise UserError(last) from None


def _spares(text: str | None, hosts: Sequence[Host]) -> tuple[Host, ...]:
    spares = () if text is None else parse_hosts(text, "--spare")
    known = {host.name for host in hosts}
    for spare in spares:
        if spare.name in known:
            raise UserError(f"--spare names {spare.name}, which is in --hosts; name another, or leave it out")
    return spares
