"""The seam between commands and the places where cells run."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.data_source import DataSource
from istbench.base.options.run import RunRequest
from istbench.base.units import counted
from istbench.launch.processes.failures import may_go_on
from istbench.results.header import Header
from istbench.results.store import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one cell ended.

    Attributes:
        request: the element of `cells` that the backend got; None where it does not tell.
        cell: the cell's name, or a description if its name is unknown.
        run: the run directory on this machine; None if the cell never had one.
        fresh: False if the cell was done before.
        failure: the error that ended the cell; None if it is done.
        running: whether the cell goes on after this command has ended.
        source: the data of this command, where this machine knows it.
    """

    cell: str
    request: RunRequest | None = None
    run: RunDirectory | None = None
    fresh: bool = True
    failure: UserError | RunFailed | None = None
    source: DataSource | None = None
    running: bool = False

    @property
    def ended(self) -> str:
        """How the cell ended, in a word or two."""
        if self.failure is not None:
            return "failed"
        if self.running:
            return "runs on"
        return "done" if self.fresh else "done before"

    @property
    def lost(self) -> bool:
        """Whether it failed by a loss, so that another try may end well."""
        return may_go_on(self.failure)

    def finished(self) -> RunDirectory:
        """The run directory of a cell that is done.

        Raises:
            UserError, RunFailed: the failure of the cell.
        """
        if self.failure is not None:
            raise self.failure
        assert self.run is not None
        return self.run


def described(request: RunRequest) -> str:
    """A description of the cell of `request`, whose name is unknown."""
    return f"{request.workload} {request.method} on {counted(request.nodes, 'node')}, seed {request.seed}"


def failure_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each different failure: the first cell that it ended, the number of others, and the reason."""
    cells = dict[str, list[str]]()
    for outcome in outcomes:
        if outcome.failure is not None:
            cells.setdefault(str(outcome.failure), []).append(outcome.cell)
    lines = []
    for reason, (first, *others) in cells.items():
        more = f" and {counted(len(others), 'more cell')}" if others else ""
        lines.append(f"{first}{more}: {reason}")
    return lines


class Screen(Protocol):
    """The lines and bars that a user sees on standard error while cells run."""

    def note(self, text: str) -> None:
        """Print one line; nothing for an empty text."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how much of the data `what` is ready."""

    def training(self, header: Header, run: RunDirectory) -> AbstractContextManager[Path]:
        """Show the progress of `run` inside the block, which gets an empty scratch directory."""


class OncePerLine:
    """A screen that leaves out notes that it has shown: every run would tell the same about its data."""

    def __init__(self, screen: Screen) -> None:
        self.note = functools.cache(screen.note)
        self.preparing, self.training = screen.preparing, screen.training


@dataclass(frozen=True, kw_only=True)
class BackendOption:
    """An option on the command line by which a user chooses or adjusts a backend.

    Attributes:
        kind: how one value is read. multiple: whether it may be repeated; its value is then a tuple.
    """

    flag: str
    help: str
    metavar: str | None = None
    kind: type[str] | type[Path] | type[bool] = str
    multiple: bool = False

    @property
    def name(self) -> str:
        """Its key in the values that `Backend.chosen` gets."""
        return self.flag.removeprefix("--").replace("-", "_")


class Backend(ABC):
    """A place where cells run."""

    chosen_by: ClassVar[str]
    """The option or command that chooses this backend, for messages."""

    choices: ClassVar[tuple[BackendOption, ...]] = ()
    """The options on the command line that choose and adjust it."""

    restarts: int = 0
    """How often a cell starts again from its last checkpoint after a loss (`launch.cells.restarts`)."""

    @classmethod
    def chosen(cls, given: Mapping[str, Any]) -> "Backend | None":
        """The backend that the values of `choices` choose, by name; None if the user did not choose this one.

        Raises:
            UserError: if a value is wrong.
        """
        return None

    @property
    def nodes(self) -> int | None:
        """Nodes of a cell if the user gives no number; None for the default of the option."""
        return None

    def restarting(self, restarts: int, *, typed: bool) -> "Backend":
        """This backend with that many `restarts`. typed: whether the user gave the number.

        Raises:
            UserError: if this backend starts nothing again.
        """
        if typed and restarts:
            raise UserError(f"--restarts {restarts}: {self.chosen_by} starts nothing again; leave --restarts out")
        return self

    @property
    def shows_results(self) -> bool:
        """Whether this process prints the results of the cells."""
        return True

    def fit(self, request: RunRequest) -> RunRequest:
        """`request` as this backend runs it.

        Raises:
            UserError: if this backend cannot run it.
        """
        if request.elastic is not None:
            raise UserError(
                f"--elastic {request.elastic}: {self.chosen_by} keeps the number of nodes; leave --elastic out, or "
                "run it on this machine or over --hosts"
            )
        return request

    def require_restarts(self, request: RunRequest) -> None:
        """Refuse `--elastic` without restarts.

        Raises:
            UserError: with the words to type.
        """
        if request.elastic is not None and not self.restarts:
            raise UserError(f"--elastic {request.elastic} goes on after a loss by --restarts; give --restarts 10")

    def begin(self, cells: Sequence[RunRequest], out: Path) -> None:
        """Start slow imports in the background, for `cells` that `run` will get, or for cells like them.

        Call it before the command prints anything. A process that only runs nodes for another one does so here,
        until the end of the command, and exits.

        Args:
            cells: all workloads, plug-ins and data of the command. out: the results directory.

        Raises:
            UserError, RunFailed: if none of the cells can run here.
        """
        return

    @abstractmethod
    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        """Run `cells`, in any order, into results directory `out`; yield the outcome of each as it ends.

        A cell that is done is not run, unless `again`. A cell that fails does not stop the others.

        Raises:
            UserError, RunFailed: if no cell can run, before the first outcome.
            KeyboardInterrupt: after a signal.
        """


def on_hosts(request: RunRequest, nodes: Sequence[int]) -> RunRequest:
    """`request` on hosts with so many `nodes` each: a number for `host` in its options, as a cell's name has it.

    Raises:
        UserError: if the hosts have different numbers of nodes.
    """
    options = request.method_options
    named = [name for name, value in options.items() if value == "host"]
    if named and len(set(nodes)) > 1:
        raise UserError(
            f"{named[0]}=host needs as many nodes on every host, and these have {', '.join(map(str, nodes))}; use "
            f"other --nodes, or give a number, such as {named[0]}=2"
        )
    return msgspec.structs.replace(request, method_options={**options, **dict.fromkeys(named, nodes[0])})
