"""A run on several hosts, asked for from one: torchrun started on each, watched, and ended together."""

import queue
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from istbench.cells.lock import alone
from istbench.errors import RunFailed, UserError, printable
from istbench.hosts.connection import Connection, Event, Events, Lost, Refused, connected, each
from istbench.hosts.files import Pace, at_once, bring, fetch
from istbench.hosts.group import Asked, Group, gather
from istbench.hosts.meanwhile import Meanwhile
from istbench.hosts.names import Host
from istbench.hosts.remote_files import how_far
from istbench.processes.launcher import Signals
from istbench.results.store import RunDirectory

Say = Callable[[str], None]
# For the others to find out by themselves that one has ended or is lost, and to say what they know; then to end.
_FAREWELL_S, _ENDS_S = 15.0, 60.0
_POLL_S = 0.2
_INTERRUPTED = 130
_STEP = re.compile(r": step ([0-9]{1,12})/")


@dataclass(frozen=True, kw_only=True)
class HostsRun:
    """What is asked for.

    Attributes:
        words: of `istbench`, as every host is to run them, without `--out`. paths: those that they name.
        out: the results directory. again: whether a cell that is done is run anew.
        checkpoint_every_s: least seconds between two checkpoints.
    """

    words: tuple[str, ...]
    paths: tuple[str, ...]
    out: Path
    again: bool
    checkpoint_every_s: float = 60.0


@dataclass
class _Ends:
    """How hosts ended, by name: the status of torchrun, why, what it printed; or how a host was lost.

    Attributes:
        first: hosts that had ended badly when the others were ended for that, by which they are interrupted.
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
        """What ended the run; None where all ended well. `during` says what went on, and `again` the way out."""
        for name, why in self.lost.items():
            return RunFailed(f"{name}: {why} {during}; {again}")
        said = [self.failure[host.name] for host in hosts if host.name in self.failure]
        for failure in said:  # the first host's speaks for all, and others where it cannot
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


def run_on_hosts(
    hosts: Sequence[Host], pythons: Sequence[str], asked: HostsRun, say: Say, config: Path | None = None
) -> RunDirectory:
    """Run `asked` on all `hosts`, which ssh reaches by `config`; returns the run directory, here.

    Raises:
        Unfit: before anything starts, naming what is wrong with which host.
        UserError, RunFailed: naming the host. KeyboardInterrupt: after a signal; all have ended.
    """
    with Signals() as signals, connected(hosts, pythons, config) as (connections, events), signals.raised():
        group = gather(connections, Asked(paths=asked.paths, out=asked.out))
        return _Session(connections, events, group, asked, say).run()


class _Session:
    def __init__(
        self, connections: Sequence[Connection], events: Events, group: Group, asked: HostsRun, say: Say
    ) -> None:
        self._hosts, self._events, self._group, self._asked, self._say = connections, events, group, asked, say
        self._first = connections[0]
        facts = group.facts[self._first.name]
        self._shared = facts.shared
        self._theirs = str(Path(facts.folder) / asked.out)
        self._ends = _Ends()
        self._cell = ""
        self._here: RunDirectory | None = None
        self._step = ""
        self._during = "while the hosts started and made data ready"

    def run(self) -> RunDirectory:
        """Start, let go, watch and bring home."""
        try:
            self._start()
            cell = self._await_cell()
            here = self._here = RunDirectory.of(self._asked.out, cell)
            with nullcontext() if self._shared else alone(here):
                try:
                    return self._finish(here)
                finally:
                    with suppress(OSError):
                        here.path.rmdir()  # made for the lock, and nothing came
        except (Lost, Refused) as error:
            self._end_all()
            cause = RunFailed(f"{self._first.name}: {error} {self._when()}; {self._way_out()}")
            raise self._recorded(cause) from None
        except BaseException:
            self._end_all()
            raise

    def _start(self) -> None:
        endpoint = f"{self._group.addresses[self._first.name]}:{self._group.port}"
        words = [*self._asked.words, f"--out={self._theirs}"]
        secret = secrets.token_hex(32)  # goes over ssh, and to no disk
        asked = {
            host.name: host.ask(
                "start",
                rank=rank,
                hosts=len(self._hosts),
                slots=host.host.slots,
                endpoint=endpoint,
                words=words,
                name=host.name,
                secret=secret,
            )
            for rank, host in enumerate(self._hosts)
        }
        _, found = each(self._hosts, lambda host: host.answer(asked[host.name]))
        if found:
            raise RunFailed("\n".join(found))

    def _await_cell(self) -> str:
        """The name of the cell, once all are ready to train it."""
        self._watch(lambda: bool(self._cell))
        # All may have been ended for one of them while the first said which cell it is.
        cause = self._cause() if self._ends.over(self._hosts) else None
        if self._cell and cause is None:
            return self._cell
        raise cause or RunFailed(f"{self._first.name}: ended before it trained; {self._way_out()}")

    def _finish(self, here: RunDirectory) -> RunDirectory:
        theirs = f"{self._theirs}/runs/{self._cell}"
        if not self._shared and not self._asked.again and bring(self._first, here.path, theirs):
            self._say(f"brought what is known of {self._cell} to {self._first.name}")
        interrupted = None
        every_s = self._asked.checkpoint_every_s
        meanwhile = Meanwhile(lambda pace: self._bring_home(theirs, here, pace), self._say, every_s)
        try:
            self._first.do("go")
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
        if not self._shared and self._first.name not in self._ends.lost:
            trained, self._during, self._step = self._when(), "while its results were copied here", ""
            self._bring_home(theirs, here)
            self._during = trained
        if interrupted is not None:
            raise interrupted
        cause = self._cause()
        if cause is not None:
            raise self._recorded(cause)
        return here

    def _recorded(self, cause: BaseException) -> BaseException:
        """`cause`, written down as the end of the run here, where its first host could not do so."""
        here = self._here
        with suppress(UserError):  # an end that cannot be written hides no cause
            if here is not None and not self._shared and here.exists() and here.header().status == "running":
                interrupted = isinstance(cause, KeyboardInterrupt)
                here.end("interrupted" if interrupted else "failed", None if interrupted else str(cause))
        return cause

    def _cause(self) -> BaseException | None:
        return self._ends.cause(self._hosts, self._when(), self._way_out())

    def _when(self) -> str:
        """What went on, as far as rank 0 has said."""
        return f"{self._during}{f', after step {self._step}' if self._step else ''}"

    def _way_out(self) -> str:
        """What the same command does now, by the checkpoint that is here."""
        command = f"the same command{' without --again' if self._asked.again else ''}"
        hosts, kept = "on these hosts or others", "written" if self._shared else "copied here"
        if self._here is None:
            return f"run {command} again, {hosts}"
        if step := how_far(self._here.path)[2]:
            return f"{command} goes on from step {step}, the last checkpoint {kept}, {hosts}"
        if self._first.name in self._ends.lost:  # it may have what was not copied in time
            return (
                f"no checkpoint has been {kept} yet: {command} goes on from the last one that {self._first.name} "
                "still has, and starts anew on other hosts"
            )
        return f"no checkpoint has been {kept} yet: {command} starts anew, {hosts}"

    def _bring_home(self, theirs: str, here: RunDirectory, pace: Pace = at_once) -> None:
        if self._first.do("standing", path=theirs) >= how_far(here.path) or self._asked.again:
            fetch(self._first, theirs, here.path, pace)

    def _watch(self, ready: Callable[[], bool]) -> None:
        """Return when all hosts have ended, or it is `ready`; where one ended badly, the others soon."""
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
        """Have all hosts end what they run, and wait until they have."""
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
            self._cell = event.frame["cell"]
