"""One cell on several hosts: start torchrun on each, watch and end them together, copy the results here."""

import hashlib
import json
import queue
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.decode import convert
from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.options.run import RunRequest
from istbench.launch.hosts.connection import Connection, Event, Events, Lost, Refused, connected, each
from istbench.launch.hosts.files import Pace, at_once, bring, fetch_newer, fetch_weights
from istbench.launch.hosts.group import HostGroup, Needs, Say, gather
from istbench.launch.hosts.meanwhile import Meanwhile
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.push import push
from istbench.launch.hosts.remote_files import published
from istbench.launch.processes.launcher import Signals
from istbench.results.header import CellName
from istbench.results.store import RunDirectory

# After one host fails, the others get this long to notice it, report it and stop; then istbench ends them.
_FAREWELL_S, _ENDS_S = 15.0, 60.0
_POLL_S = 0.2
_INTERRUPTED = 130
_STEP = re.compile(r": step ([0-9]{1,12})/")


@dataclass(frozen=True, kw_only=True)
class HostsRun:
    """One cell to run on hosts.

    Attributes:
        request: the cell, with paths of this machine. out: the results directory, here and on the first host.
        again: whether to train a finished cell anew.
    """

    request: RunRequest
    out: Path
    again: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the request names, each once."""
        named = (self.request.data, *self.request.plugins)
        return tuple(dict.fromkeys(str(path) for path in named if path is not None))

    @property
    def absent(self) -> tuple[str, ...]:
        """Those of `paths` that do not exist here, so that each host needs its own."""
        return tuple(path for path in self.paths if not Path(path).exists())

    @property
    def key(self) -> str:
        """Identifies the cell among those that run detached on a host: a hash of the typed request."""
        return hashlib.sha256(json.dumps(self.request.arguments()).encode()).hexdigest()[:16]

    def words(self, there: Mapping[str, str], save: Path | None) -> tuple[str, ...]:
        """The words after `istbench` that a host runs, without `--out`; torchrun tells it the number of nodes.

        Args:
            there: for paths of this machine, those of the host, if they differ. save: the directory for weights.
        """
        data = self.request.data
        request = msgspec.structs.replace(
            self.request,
            nodes=1,
            data=data if data is None else Path(there.get(str(data), str(data))),
            plugins=tuple(there.get(path, path) for path in self.request.plugins),
            save=save,
        )
        return (*request.arguments(), *(["--again"] if self.again else []))

    def save_in(self, out: str) -> Path | None:
        """A directory for weights under `out`, the results directory of the first host; None without `--save`."""
        if self.request.save is None:
            return None
        here = str(self.request.save.absolute())
        return Path(out, "saved", f"{self.request.save.name}-{hashlib.sha256(here.encode()).hexdigest()[:8]}")


@dataclass
class _Ends:
    """How hosts ended, by name: exit status, failure and last lines of torchrun; or how the connection was lost.

    Attributes:
        first: hosts that had already failed when istbench ended the others, which therefore report an interrupt.
    """

    status: dict[str, int] = field(default_factory=dict)
    failure: dict[str, dict[str, Any]] = field(default_factory=dict)
    tail: dict[str, list[str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        name, frame = event.host.name, event.frame
        if "lost" in frame and name not in self.status:
            self.lost[name] = frame["lost"]
        if "ended" in frame:
            self.status[name], self.tail[name] = int(frame["ended"]), list(frame["tail"])
            if frame["failure"]:
                self.failure[name] = frame["failure"]

    def over(self, hosts: Sequence[Connection]) -> bool:
        return all(host.name in self.status or host.name in self.lost for host in hosts)

    @property
    def bad(self) -> bool:
        return bool(self.lost) or any(self.status.values())

    def cause(self, hosts: Sequence[Connection], during: str, again: str) -> BaseException | None:
        """The error that ended the run, None after success. `during` is a phase of the run, `again` the way out."""
        for name, why in self.lost.items():
            return RunFailed(f"{name}: {why} {during}; {again}")
        said = [self.failure[host.name] for host in hosts if host.name in self.failure]
        for failure in said:  # the first host reports for all; the others report if it cannot
            if failure["status"] != _INTERRUPTED:
                return (UserError if failure["status"] == 2 else RunFailed)(str(failure["message"]))
        if said and not self.first:
            return KeyboardInterrupt()
        for host in hosts:
            if self.status.get(host.name) and (not self.first or host.name in self.first):
                lines = "".join(f"\n  {printable(line)}" for line in self.tail[host.name] if line.strip())
                status = self.status[host.name]
                return RunFailed(f"{host.name}: torchrun ended with status {status} {during}; {again}{lines}")
        return None


def run_named_by(host: str, cell: str, out: Path) -> RunDirectory:
    """The run directory in results directory `out` of the cell `cell`, a name that `host` reports.

    Raises:
        RunFailed: if it is no name of a cell, and might lead out of the directory of runs.
    """
    try:
        name = convert(cell, CellName, lambda _: f"{host}: the name of a cell")
    except UserError as error:
        raise RunFailed(f"{error}; leave this host out") from None
    return RunDirectory.of(out, name)


def run_on_hosts(
    hosts: Sequence[Host],
    pythons: Sequence[str],
    run: HostsRun,
    say: Say,
    config: Path | None = None,
    started: Callable[[str], None] = lambda _cell: None,
) -> RunDirectory:
    """Train the cell of `run` on all `hosts`, which ssh reaches by `config`; returns the local run directory.

    started: called with "" once torchrun runs on all hosts, and with the name of the cell when it trains.

    Raises:
        Unfit: before anything starts, with a line for each problem of a host.
        UserError, RunFailed: naming the host. KeyboardInterrupt: after a signal; all hosts have ended.
    """
    with Signals() as signals, connected(hosts, pythons, config) as (connections, events), signals.raised():
        group = gather(connections, Needs(paths=run.absent, out=run.out))
        there = push(connections, run.paths, say)
        return _Session(connections, events, group, run, there, say, started).run()


class _Session:
    def __init__(
        self,
        connections: Sequence[Connection],
        events: Events,
        group: HostGroup,
        run: HostsRun,
        there: Mapping[str, Mapping[str, str]],
        say: Say,
        started: Callable[[str], None] = lambda _cell: None,
    ) -> None:
        self._hosts, self._events, self._group, self._run, self._say = connections, events, group, run, say
        self._there, self._started = there, started
        self._first = connections[0]
        facts = group.facts[self._first.name]
        self._shared = facts.shared
        self._theirs = str(Path(facts.folder) / run.out)
        self._ends = _Ends()
        self._cell = ""
        self._here: RunDirectory | None = None
        self._step = ""
        self._during = "while the hosts started and prepared data"

    def run(self) -> RunDirectory:
        """Start torchrun, watch it, and copy the results here."""
        try:
            self._start()
            self._started("")
            cell = self._await_cell()
            here = self._here = run_named_by(self._first.name, cell, self._run.out)
            with nullcontext() if self._shared else here.locked():
                try:
                    return self._finish(here)
                finally:
                    with suppress(OSError):
                        here.path.rmdir()  # the lock created it, and nothing arrived
        except (Lost, Refused) as error:
            self._end_all()
            cause = RunFailed(f"{self._first.name}: {error} {self._when()}; {self._way_out()}")
            raise self._recorded(cause) from None
        except BaseException:
            self._end_all()
            raise

    def _start(self) -> None:
        endpoint = f"{self._group.addresses[self._first.name]}:{self._group.port}"
        save = self._run.save_in(self._theirs)
        secret = secrets.token_hex(32)  # goes over ssh, and to no disk
        futures = {
            host.name: host.ask(
                "start",
                rank=rank,
                hosts=len(self._hosts),
                slots=host.host.slots,
                endpoint=endpoint,
                words=[*self._run.words(self._there.get(host.name, {}), save), f"--out={self._theirs}"],
                name=host.name,
                secret=secret,
            )
            for rank, host in enumerate(self._hosts)
        }
        _, found = each(self._hosts, lambda host: host.answer(futures[host.name]))
        if found:
            raise RunFailed("\n".join(found))

    def _await_cell(self) -> str:
        """The name of the cell, once all hosts are ready to train it."""
        self._watch(lambda: bool(self._cell))
        # All may have ended because of one host while the first named the cell.
        cause = self._cause() if self._ends.over(self._hosts) else None
        if self._cell and cause is None:
            return self._cell
        raise cause or RunFailed(f"{self._first.name}: ended before it trained; {self._way_out()}")

    def _finish(self, here: RunDirectory) -> RunDirectory:
        theirs = f"{self._theirs}/runs/{self._cell}"
        if not self._shared and not self._run.again and bring(self._first, here.path, theirs):
            self._say(f"copied the earlier part of {self._cell} to {self._first.name}")
        interrupted = None
        every_s = self._run.request.checkpoint_every_s
        meanwhile = Meanwhile(lambda pace: self._fetch(theirs, here, pace), self._say, every_s)
        try:
            self._first.do("go")
            self._started(self._cell)
            self._during = "while it trained"
            if not self._shared:
                meanwhile.start()
            self._watch(lambda: False)
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
            meanwhile.stop()
            self._end_all()
        finally:
            meanwhile.stop()
        meanwhile.join()
        cause = self._cause() if interrupted is None else interrupted
        if self._first.name not in self._ends.lost:
            trained, self._during, self._step = self._when(), "while its results were copied here", ""
            if not self._shared:
                self._fetch(theirs, here)
            if cause is None:
                self._fetch_weights(here)
            self._during = trained
        if interrupted is not None:
            raise interrupted
        cause = self._cause()
        if cause is not None:
            raise self._recorded(cause)
        return here

    def _recorded(self, cause: BaseException) -> BaseException:
        """`cause`, recorded here as the end of the run if the first host could not record it."""
        here = self._here
        with suppress(UserError):  # a failure to record the end hides no cause
            if here is not None and not self._shared and here.exists() and here.header().status == "running":
                interrupted = isinstance(cause, KeyboardInterrupt)
                here.end("interrupted" if interrupted else "failed", None if interrupted else str(cause))
        return cause

    def _cause(self) -> BaseException | None:
        return self._ends.cause(self._hosts, self._when(), self._way_out())

    def _when(self) -> str:
        """The phase of the run, and the last step that rank 0 reported."""
        return f"{self._during}{f', after step {self._step}' if self._step else ''}"

    def _way_out(self) -> str:
        """The effect of the same command now, which depends on the checkpoint that is here."""
        command = f"the same command{' without --again' if self._run.again else ''}"
        hosts, kept = "on these hosts or others", "written" if self._shared else "copied here"
        if self._here is None:
            return f"run {command} again, {hosts}"
        if step := published(self._here.path):
            return f"{command} goes on from step {step}, the last checkpoint {kept}, {hosts}"
        if self._first.name in self._ends.lost:  # it may have a checkpoint that was not copied in time
            return (
                f"no checkpoint has been {kept} yet: {command} goes on from the last one that {self._first.name} "
                "still has, and starts anew on other hosts"
            )
        return f"no checkpoint has been {kept} yet: {command} starts anew, {hosts}"

    def _fetch(self, theirs: str, here: RunDirectory, pace: Pace = at_once) -> None:
        fetch_newer(self._first, theirs, here.path, pace, again=self._run.again)

    def _fetch_weights(self, here: RunDirectory) -> None:
        save = self._run.save_in(self._theirs)
        if save is not None and self._run.request.save is not None:
            fetch_weights(self._first, str(save), self._run.request.save, here, self._say)

    def _watch(self, ready: Callable[[], bool]) -> None:
        """Return when all hosts have ended or `ready()` is true; after a failure, the other hosts end soon."""
        until = None
        while not ready() and not self._ends.over(self._hosts):
            try:
                event = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                pass
            else:
                self._hear(event)
            if self._ends.bad and until is None:
                until = time.monotonic() + _FAREWELL_S
            if until is not None and time.monotonic() > until:
                self._end_all()
                return

    def _end_all(self) -> None:
        """End torchrun on all hosts, and wait for it."""
        self._ends.first = self._ends.first or [name for name, status in self._ends.status.items() if status]
        for host in self._hosts:
            if host.name not in self._ends.status:
                host.ask("end")
        until = time.monotonic() + _ENDS_S
        while not self._ends.over(self._hosts) and (left := until - time.monotonic()) > 0:
            try:
                self._hear(self._events.get(timeout=left))
            except queue.Empty:
                return

    def _hear(self, event: Event) -> None:
        self._ends.hear(event)
        if event.host is self._first and event.frame.get("said", "").strip():
            self._say(printable(event.frame["said"]))
            if found := _STEP.search(event.frame["said"]):
                self._step = found[1]
        if event.host is self._first and "cell" in event.frame:
            self._cell = self._cell or str(event.frame["cell"])  # checked once
