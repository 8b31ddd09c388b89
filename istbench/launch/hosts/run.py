"""One cell on hosts: start torchrun on each, watch and end them together, copy the results here."""

import dataclasses
import hashlib
import json
import queue
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.decode import convert
from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.machine import HOST
from istbench.base.options.run import RunRequest
from istbench.launch.hosts.connection import Connection, Event, Events, Frame, Lost, Refused, ask_each, connected
from istbench.launch.hosts.group import HostGroup, Say, Unfit, gather, survey
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.push import push
from istbench.launch.hosts.remote_files import published
from istbench.launch.hosts.run_copies import Throttle, at_once, bring, fetch_newer, fetch_weights, periodic_copies
from istbench.launch.hosts.run_folder import GROW, REASON, TRAIN, Failure, Reason
from istbench.launch.processes.failures import MORE_NODES, WorkerLost, cause_in
from istbench.launch.torchrun.secret import SECRET
from istbench.node.checkpoint_steps import newest
from istbench.results.curves import Curve
from istbench.results.events import Loss, Return
from istbench.results.header import CellName
from istbench.results.store import RunDirectory

# After one host fails, the others get this long to notice it, report it and stop; then istbench ends them. After
# one is lost, they may wait for it until their time-out, and no checkpoint is possible without it.
_FAREWELL_S, _ENDS_S = 15.0, 60.0
_OF_LOST_S = 5.0
_POLL_S = 0.2
_INTERRUPTED = 130
_LOOKS_S = 10.0  # for hosts that are away
_COPIED_EVERY_S = 60.0  # if the run itself chooses when it saves
_STEP = re.compile(r": step ([0-9]{1,12})/")


@dataclass(frozen=True, kw_only=True)
class HostsRun:
    """One cell to run on hosts.

    Attributes:
        request: the cell, with paths of this machine. out: the results directory, here and on the first host.
        again: whether to train a finished cell anew.
        hosts: the hosts, and as `connected` takes them, pythons: names of Pythons there, config: the file of ssh.
        restarts: how often the run starts again after a loss. spares: hosts in place of those that are gone.
        away: hosts without which an elastic run goes on; it grows once they can be reached.
    """

    request: RunRequest
    out: Path
    again: bool = False
    hosts: Sequence[Host] = ()
    pythons: Sequence[str] = ()
    config: Path | None = None
    restarts: int = 0
    spares: Sequence[Host] = ()
    away: Sequence[Host] = ()

    def without(self, gone: Collection[str]) -> "HostsRun | None":
        """The run on the hosts that are not `gone`; None if it is not elastic, or these have too few nodes."""
        hosts = [host for host in self.hosts if host.name not in gone]
        lost = [host for host in self.hosts if host.name in gone]
        elastic = self.request.elastic
        if elastic is None or not lost or sum(host.slots for host in hosts) < elastic.least:
            return None
        return dataclasses.replace(self, hosts=hosts, away=(*self.away, *lost))

    def with_back(self, back: Sequence[Host]) -> "HostsRun":
        """The run on its hosts and those that are `back`."""
        away = [host for host in self.away if host not in back]
        return dataclasses.replace(self, hosts=(*self.hosts, *back), away=away, again=False)

    @property
    def key(self) -> str:
        """Identifies the cell among those that run detached on a host: a hash of the request, with whole paths."""
        request = self.request
        there = {
            "data": request.data and request.data.resolve(),
            "plugins": tuple(str(Path(path).resolve()) for path in request.plugins),
            "save": request.save and request.save.resolve(),
        }
        words = msgspec.structs.replace(request, **there).arguments()
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    def request_there(self, there: Mapping[str, str], save: Path | None) -> RunRequest:
        """The request with the paths of a host.

        Args:
            there: for paths of this machine, those of the host, if they differ. save: the directory for weights.
        """
        data = self.request.data
        return msgspec.structs.replace(
            self.request,
            data=data if data is None else Path(there.get(str(data), str(data))),
            plugins=tuple(there.get(path, path) for path in self.request.plugins),
            save=save,
        )

    def words(self, there: Mapping[str, str], save: Path | None) -> tuple[str, ...]:
        """The words after `istbench` that a host runs, without `--out`; torchrun tells it the nodes that there are.

        The arguments are those of `request_there`.
        """
        request = self.request_there(there, save)
        known = f"--nodes={request.nodes}" if request.elastic is None else None
        return (*(word for word in request.arguments() if word != known), *(["--again"] if self.again else []))

    def save_in(self, out: str) -> Path | None:
        """A directory for weights under `out`, the results directory of the first host; None without `--save`."""
        if self.request.save is None:
            return None
        here = str(self.request.save.absolute())
        return Path(out, "saved", f"{self.request.save.name}-{hashlib.sha256(here.encode()).hexdigest()[:8]}")


def paths_of(runs: Sequence[HostsRun]) -> list[str]:
    """The paths that the requests of `runs` name, each once."""
    named = (path for run in runs for path in (run.request.data, *run.request.plugins))
    return list(dict.fromkeys(str(path) for path in named if path is not None))


class RunLost(WorkerLost):
    """A run on hosts lost a worker, a host or a link.

    Attributes:
        step: the last local step that is known. loss: for the record of the run. began: whether it trained.
        back: hosts that can be reached again, if the run stopped to begin again with them.
    """

    step = 0
    loss: Loss | None = None
    began = False
    back: Sequence[Host] = ()


def _error_of(failure: Failure, host: str) -> BaseException:
    """The error to raise here for the `failure` that `host` reports."""
    if failure.unfit:
        return Unfit([f"{line} (seen from {host})" for line in failure.message.splitlines()])
    if failure.lost:
        what, newline, lines = failure.message.partition("\n")
        return RunLost(what, newline + lines)
    return (UserError if failure.status == 2 else RunFailed)(failure.message)


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
    run: HostsRun,
    say: Say,
    started: Callable[[str], None] = lambda _cell: None,
    reason: Loss | Return | None = None,
) -> RunDirectory:
    """Train the cell of `run` on all its hosts; returns the local run directory.

    Args:
        started: called with "" once torchrun runs on all hosts, and with the name of the cell when it trains.
        reason: the loss after which the run starts again, or the hosts that are back.

    Raises:
        Unfit: before anything starts, with a line for each problem of a host.
        RunLost: after a loss, with what it cost.
        UserError, RunFailed: naming the host. KeyboardInterrupt: after a signal; all hosts have ended.
    """
    with connected(run.hosts, run.pythons, run.config) as (connections, events):
        group = gather(connections, run.out, paths_of([run]))
        there = push(connections, paths_of([run]), say)
        facts = group.facts[connections[0].name]
        theirs = str(Path(facts.folder) / run.out)
        session = Session(connections, events, run, theirs, facts.shared, say, started)
        try:
            return session.run(group, there, reason)
        except RunLost as failure:
            session.measure(failure)
            raise


@contextmanager
def returns(run: HostsRun, grow: Callable[[Sequence[Host]], None]) -> Iterator[None]:
    """Inside, a thread looks for the hosts of `run` that are away, and calls `grow` once with those it finds."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOKS_S):
            back = [host for host in run.away if answers(host, run)]
            if back and not over.is_set():
                with suppress(Lost, Refused):
                    grow(back)
                return

    looks = threading.Thread(target=look, daemon=True)
    if run.away:
        looks.start()
    try:
        yield
    finally:
        over.set()


def answers(host: Host, run: HostsRun) -> bool:
    """Whether `host` can be reached, and is fit for the run."""
    connection = Connection(host, run.pythons, queue.SimpleQueue(), run.config)
    with closing(connection), suppress(Lost, Refused, Unfit, UserError):
        survey([connection], run.out, marks=False)
        return True
    return False


def trained_until(reports: Sequence[tuple[float, int]], at: float) -> tuple[int, float]:
    """The local step at time `at` by the pace of the last two `reports`, of time and step; and seconds a step.

    Without two of them the step is the last that was reported, and the seconds are 0.
    """
    if not reports:
        return 0, 0.0
    (before, first), (then, last) = reports[-2:] if len(reports) > 1 else (reports[-1], reports[-1])
    if last <= first or then <= before:
        return last, 0.0
    a_step_s = (then - before) / (last - first)
    return last + max(0, int((at - then) / a_step_s)), a_step_s


class Session:
    """A run on hosts that this machine starts, watches and ends. The first host writes the results.

    Args:
        theirs: the results directory of the first host. shared: whether that is the directory here.
        started: called with the name of the cell when it trains.
    """

    def __init__(
        self,
        hosts: Sequence[Connection],
        events: Events,
        run: HostsRun,
        theirs: str,
        shared: bool,
        say: Say,
        started: Callable[[str], None],
    ) -> None:
        self._hosts, self._events, self._first = hosts, events, hosts[0]
        self._run, self._theirs, self._shared = run, theirs, shared
        self._say, self._started = say, started
        self._ends: dict[str, Frame] = {}
        self._lost: dict[str, str] = {}  # why, by host
        # Hosts that had failed when istbench ended the others, which therefore report an interrupt.
        self._failed_first: list[str] = []
        self._cell: str | None = None  # "" once all hosts have started
        self._here: RunDirectory | None = None
        self._step = ""
        self._reports: deque[tuple[float, int]] = deque(maxlen=2)
        self._bad_since: float | None = None
        self._began = self._copies = False  # to train; the results, after training
        self._back: Sequence[Host] = ()

    def run(
        self, group: HostGroup, there: Mapping[str, Mapping[str, str]], reason: Loss | Return | None
    ) -> RunDirectory:
        """Start torchrun, watch it, and copy the results here; `there` has paths of this machine by host."""
        try:
            self._start(group, there, reason)
            self._started("")
            return self.to_end()
        except (Lost, Refused) as error:
            self._end_all()
            kind = RunLost if isinstance(error, Lost) else RunFailed
            cause = kind(f"{self._first.name}: {error}{self._when()}; {self._way_out()}")
            raise self._recorded(cause) from None
        except BaseException:
            self._end_all()
            raise

    def _start(
        self, group: HostGroup, there: Mapping[str, Mapping[str, str]], reason: Loss | Return | None
    ) -> None:
        save = self._run.save_in(self._theirs)
        secret = secrets.token_hex(32)  # goes over ssh, and to no disk

        def arguments(host: Connection) -> dict[str, Any]:
            environment = {HOST: host.name, SECRET: secret}
            if reason is not None:
                noticed = reason.noticed + group.clocks[host.name].ahead_s
                own = msgspec.structs.replace(reason, noticed=noticed)
                whole = Reason(loss=own) if isinstance(own, Loss) else Reason(back=own)
                environment[REASON] = msgspec.json.encode(whole).decode()
            return {
                "torchrun": {
                    "nnodes": len(self._hosts),
                    "node-rank": self._hosts.index(host),
                    "nproc-per-node": host.host.slots,
                    "rdzv-endpoint": f"{group.addresses[self._first.name]}:{group.port}",
                },
                "words": [*self._run.words(there.get(host.name, {}), save), f"--out={self._theirs}"],
                "environment": environment,
            }

        _, found = ask_each(self._hosts, "start", arguments)
        if found:
            raise RunFailed("\n".join(found))

    def to_end(self) -> RunDirectory:
        """Watch the run to its end, and copy its results here meanwhile and then; returns the local run directory.

        Raises:
            Lost, Refused: if a request fails. UserError, RunFailed, Unfit, KeyboardInterrupt: as the run.
        """
        here = self._here = run_named_by(self._first.name, self._await_cell(), self._run.out)
        with nullcontext() if self._shared else here.locked():
            try:
                return self._finish(here, f"{self._theirs}/runs/{here.path.name}")
            finally:
                with suppress(OSError):
                    here.path.rmdir()  # the lock created it, and nothing arrived

    def _await_cell(self) -> str:
        """The name of the cell, once all hosts are ready to train it."""
        self._watch(lambda: bool(self._cell))
        # All may have ended because of one host while the first named the cell.
        if not self._cell or (self._over and self._cause() is not None):
            self._release()
            raise self._cause() or RunFailed(f"{self._first.name}: ended before it trained; {self._way_out()}")
        return self._cell

    def _finish(self, here: RunDirectory, theirs: str) -> RunDirectory:
        interrupted = None
        every_s = self._run.request.checkpoint_every_s
        if every_s == "auto":
            every_s = _COPIED_EVERY_S
        with ExitStack() as copies:
            try:
                self._begin(here, theirs)
                self._started(here.path.name)
                if not self._shared:
                    fetch = partial(self._fetch, theirs, here)
                    copies.enter_context(periodic_copies(fetch, self._say, every_s))
                copies.enter_context(returns(self._run, self._grow))
                self._watch(lambda: False)
            except KeyboardInterrupt as interrupt:
                interrupted = interrupt
                self._interrupt()
        cause = self._cause() if interrupted is None else interrupted
        if self._first.name not in self._lost:
            self._copies = True
            if not self._shared:
                self._fetch(theirs, here)
            save = self._run.save_in(self._theirs)
            if cause is None and save is not None and self._run.request.save is not None:
                fetch_weights(self._first, str(save), self._run.request.save, here, self._say)
            self._copies = False
        self._release()
        if interrupted is not None:
            raise interrupted
        cause = self._cause()
        if cause is not None:
            raise self._recorded(cause)
        return here

    def _begin(self, here: RunDirectory, theirs: str) -> None:
        if not self._shared and self._run.again:
            here.clear()  # else it would be further than the new run after a loss
        elif not self._shared and bring(self._first, here.path, theirs):
            self._say(f"copied the earlier part of {here.path.name} to {self._first.name}")
        self._first.do("mark", name=TRAIN)
        self._began = True

    def _grow(self, back: Sequence[Host]) -> None:
        """Let the run stop at its next evaluation, since hosts are `back`."""
        self._first.do("mark", name=GROW)
        self._back = back

    def _interrupt(self) -> None:
        self._end_all()

    def _release(self) -> None:
        """Tell the first host that the results are here."""

    def _recorded(self, cause: BaseException) -> BaseException:
        """`cause`, recorded here as the end of the run if the first host could not record it."""
        here = self._here
        with suppress(UserError):  # a failure to record the end hides no cause
            if here is not None and not self._shared and here.exists() and here.header().status == "running":
                interrupted = isinstance(cause, KeyboardInterrupt)
                here.end("interrupted" if interrupted else "failed", None if interrupted else str(cause))
        return cause

    def _when(self) -> str:
        """The phase of the run, and the last step that rank 0 reported."""
        if self._copies:
            return " while its results were copied here"
        if not self._began:
            return " while the hosts started and prepared data"
        return f" while it trained{f', after step {self._step}' if self._step else ''}"

    def _way_out(self) -> str:
        """The effect of the same command now, which depends on the checkpoint that is here."""
        command = f"the same command{' without --again' if self._run.again else ''}"
        hosts, kept = "on these hosts or others", "written" if self._shared else "copied here"
        if self._here is None:
            return f"run {command} again, {hosts}"
        if step := published(self._here.path):
            return f"{command} goes on from step {step}, the last checkpoint {kept}, {hosts}"
        if self._first.name in self._lost:  # it may have a checkpoint that was not copied in time
            return (
                f"no checkpoint has been {kept} yet: {command} goes on from the last one that {self._first.name} "
                "still has, and starts anew on other hosts"
            )
        return f"no checkpoint has been {kept} yet: {command} starts anew, {hosts}"

    @property
    def _over(self) -> bool:
        return all(host.name in self._ends or host.name in self._lost for host in self._hosts)

    @property
    def _failed(self) -> list[str]:
        return [name for name, end in self._ends.items() if end.ended]

    def _cause(self) -> BaseException | None:
        """The error that ended the run, None after success."""
        when, way_out = self._when(), self._way_out()
        for name, why in self._lost.items():
            return RunLost(f"{name}: {why}{when}; {way_out}")
        ended = [(host.name, self._ends[host.name]) for host in self._hosts if host.name in self._ends]
        said = [(name, end.failure) for name, end in ended if end.failure is not None]
        for name, failure in said:  # the first host reports for all; the others report if it cannot
            if failure.status != _INTERRUPTED:
                return _error_of(failure, name)
        if said and not self._failed_first:
            return KeyboardInterrupt()
        for name, end in ended:
            if end.ended and (not self._failed_first or name in self._failed_first):
                lines = "".join(f"\n  {printable(line)}" for line in end.tail if line.strip())
                # A process that was killed reports nothing; neither does one that cannot start.
                kind = RunLost if self._here is not None else RunFailed
                return kind(f"{name}: torchrun ended with status {end.ended}{when}; {way_out}{lines}")
        return None

    def measure(self, failure: RunLost) -> None:
        """Add to `failure` what the loss cost, from the copy of the run here and the last messages of the hosts."""
        step, saved, seconds, quiet_s = int(self._step or 0), 0, 0.0, self._quiet_s()
        trained, a_step_s = trained_until(list(self._reports), time.monotonic() - quiet_s)
        with suppress(UserError):
            if (here := self._here) is not None:
                found, header = newest(here.checkpoint), here.header()
                saved = found.totals.step if found else 0
                for last in Curve.from_events(here.events(), header.own_metric).evaluations[-1:]:
                    step, seconds = max(step, last.step), last.wall_s - (found.totals.wall_s if found else 0.0)
                trained = min(trained, header.config.steps)
        redone = max(0, max(step, trained) - saved)
        failure.step, failure.began = max(step, saved), self._began
        failure.back = () if self._lost or MORE_NODES not in failure.what else self._back
        failure.loss = Loss(
            cause=cause_in(failure.what),
            noticed=time.time(),
            noticing_s=quiet_s,
            redone_steps=redone,
            redone_s=max(0.0, seconds, redone * a_step_s),
        )

    def _quiet_s(self) -> float:
        """Seconds since the last message of a lost host, or since the first host failed."""
        lost = [host.silent_s for host in self._hosts if host.name in self._lost]
        since = time.monotonic() - self._bad_since if self._bad_since is not None else 0.0
        return max([*lost, since])

    def _fetch(self, theirs: str, here: RunDirectory, throttle: Throttle = at_once) -> None:
        fetch_newer(self._first, theirs, here.path, throttle, again=self._run.again)

    def _watch(self, ready: Callable[[], bool]) -> None:
        """Return when all hosts have ended or `ready()` is true; after a failure, the other hosts end soon."""
        until = None
        while not ready() and not self._over:
            try:
                event = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                pass
            else:
                self._hear(event)
            if (self._lost or self._failed) and until is None:
                self._bad_since = self._bad_since or time.monotonic()
                until = time.monotonic() + (_OF_LOST_S if self._lost else _FAREWELL_S)
            if until is not None and time.monotonic() > until:
                self._end_all()
                return

    def _end_all(self) -> None:
        """End torchrun on all hosts, and wait for it."""
        self._failed_first = self._failed_first or self._failed
        grace_s = _OF_LOST_S if self._lost else None
        for host in self._hosts:
            if host.name not in self._ends:
                host.ask("end", grace_s=grace_s)
        until = time.monotonic() + _ENDS_S
        while not self._over and (left := until - time.monotonic()) > 0:
            try:
                self._hear(self._events.get(timeout=left))
            except queue.Empty:
                return

    def _hear(self, event: Event) -> None:
        name, frame = event.host.name, event.frame
        if event.host not in self._hosts:
            return
        if isinstance(frame, Lost):
            if name not in self._ends:
                self._lost[name] = str(frame)
            return
        if frame.ended is not None:
            self._ends[name] = frame
        if event.host is self._first and frame.said is not None and frame.said.strip():
            self._say(printable(frame.said))
            if found := _STEP.search(frame.said):
                self._step = found[1]
                self._reports.append((time.monotonic(), int(found[1])))
        if event.host is self._first and frame.cell is not None:
            self._cell = self._cell or frame.cell  # checked once
