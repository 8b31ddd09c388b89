"""Cells on other hosts, which this machine reaches over ssh: `--hosts`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from istbench.backends.backend import Backend, BackendOption, Kind, Outcome, Screen
from istbench.config.run import RunRequest
from istbench.door import read_bytes
from istbench.errors import RunFailed, UserError, printable
from istbench.hosts.names import Host, first_of, parse_hosts
from istbench.results.store import RunDirectory

# The first host runs this module: it reads the words of a command as the command itself does.
_FINDS_NAMES = "istbench.cli.cell_names"


@dataclass(frozen=True, kw_only=True)
class Hosts(Backend):
    """Hosts with a node for each slot. Each cell runs on the first hosts that have enough slots for it.

    Attributes:
        python: the Python on the hosts; None for the default.
        ssh_config: the file that ssh reads instead of the user's own; None for that one.
    """

    chosen_by: ClassVar[str] = "--hosts"
    hosts: tuple[Host, ...]
    python: str | None = None
    ssh_config: Path | None = None

    @property
    def nodes(self) -> int:
        """The slots of all hosts."""
        return sum(host.slots for host in self.hosts)

    def fit(self, request: RunRequest) -> RunRequest:
        """`request`, for which there are hosts; see `Backend.fit`."""
        first_of(self.hosts, request.nodes)
        return request

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        """Run the cells one after another; see `Backend.run`."""

        def say(text: str) -> None:
            screen.note(printable(text))

        for request, done in zip(cells, self._finished(cells, out, again), strict=True):
            if done is not None:
                say(done.header().data_source.note)
                yield Outcome(cell=done.path.name, run=done, fresh=False)
                continue
            try:
                run = self._train(request, out, again, say)
            except (RunFailed, UserError) as error:
                cell = f"{request.workload} {request.method} on {request.nodes} nodes, seed {request.seed}"
                yield Outcome(cell=cell, failure=error)
            else:
                yield Outcome(cell=run.path.name, run=run)

    def _train(self, request: RunRequest, out: Path, again: bool, say: Callable[[str], None]) -> RunDirectory:
        from istbench.hosts.connection import pythons
        from istbench.hosts.group import Unfit
        from istbench.hosts.run import HostsRun, run_on_hosts

        hosts = first_of(self.hosts, request.nodes)
        asked = HostsRun(
            words=words_there(request, again=again),
            paths=_paths([request]),
            out=out,
            again=again,
            checkpoint_every_s=request.checkpoint_every_s,
        )
        try:
            run = run_on_hosts(hosts, pythons(self.python), asked, say, self.ssh_config)
        except Unfit as unfit:
            *others, last = unfit.problems
            for problem in others:
                say(f"istbench: {problem}")
            raise UserError(last) from None
        if request.save is not None:
            say(f"the weights are in {request.save} on {hosts[0].name}")
        return run

    def _finished(self, cells: Sequence[RunRequest], out: Path, again: bool) -> list[RunDirectory | None]:
        """The run directories, here, of cells that are done; None for others, and where hosts cannot tell.

        A host alone knows whether it has saved weights, so a cell with `save` is never found here.
        """
        unknown: list[RunDirectory | None] = [None] * len(cells)
        if again or any(request.save is not None for request in cells):
            return unknown
        from istbench.hosts.connection import pythons
        from istbench.hosts.finished import AskedCell, finished
        from istbench.hosts.group import Unfit

        asked = [
            AskedCell(
                request=request,
                words=words_there(request, again=False),
                hosts=first_of(self.hosts, request.nodes),
            )
            for request in cells
        ]
        try:
            return finished(asked, _paths(cells), out, pythons(self.python), self.ssh_config, by=_FINDS_NAMES)
        except Unfit:  # the run that follows reports it
            return unknown


def words_there(request: RunRequest, *, again: bool) -> tuple[str, ...]:
    """The words of the istbench command that runs `request` on a host. torchrun tells it the number of nodes."""
    return (*msgspec.structs.replace(request, nodes=1).arguments(), *(["--again"] if again else []))


def _paths(requests: Sequence[RunRequest]) -> tuple[str, ...]:
    """The paths that requests name, each once."""
    named = [path for request in requests for path in (request.data, *request.plugins) if path is not None]
    return tuple(dict.fromkeys(map(str, named)))


def chosen(given: Mapping[str, Any]) -> Hosts | None:
    """The hosts that the values of the options below name, None where they name none.

    Raises:
        UserError: where a value is wrong, or an option is about hosts that are not named.
    """
    text, python, config = given.get("hosts"), given.get("hosts_python"), given.get("ssh_config")
    if text is None:
        for option in KIND.options:
            if given.get(option.name) is not None:
                raise UserError(
                    f"{option.flag} is for the hosts of --hosts; give --hosts as well, or leave {option.flag} out"
                )
        return None
    hosts = parse_hosts(text)
    if python is not None and (not python.strip() or python.startswith("-") or not python.isprintable()):
        raise UserError("--hosts-python must be the path of a Python")
    if config is not None:
        read_bytes(config, "a configuration file of ssh's, as ~/.ssh/config is")
    return Hosts(hosts=hosts, python=python, ssh_config=config)


KIND = Kind(
    options=(
        BackendOption(
            flag="--hosts",
            name="hosts",
            metavar="FILE|a,b,c",
            help="Use these hosts over ssh, one node each. FILE has one host a line, with slots=N for N nodes.",
        ),
        BackendOption(
            flag="--hosts-python",
            name="hosts_python",
            metavar="PATH",
            help="Python on the hosts. Default: the same path as here, else python3.",
        ),
        BackendOption(
            flag="--ssh-config",
            name="ssh_config",
            metavar="FILE",
            kind=Path,
            help="File that ssh reads for --hosts instead of ~/.ssh/config: keys, known hosts, jump hosts.",
        ),
    ),
    make=chosen,
)
