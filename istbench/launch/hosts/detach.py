"""Cells that run on without this machine: the first host requests them from the others, and keeps their results.

The same command finds them again by the hash of the typed request, follows them, and copies the results here.
"""

import contextlib
import dataclasses
import hashlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import msgspec

from istbench.base.decode import convert, path_text, read_text
from istbench.base.errors import RunFailed, UserError, printable
from istbench.launch.hosts.connection import Connection, Lost, Refused, connected, way
from istbench.launch.hosts.detached import CONFIG, CellReport, CellState, DetachedJob, JobCell
from istbench.launch.hosts.files import bring, fetch_newer, fetch_weights
from istbench.launch.hosts.finished import name_cells_there, runs_alike
from istbench.launch.hosts.group import Needs, Say, Unfit, gather, survey
from istbench.launch.hosts.meanwhile import Meanwhile
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.push import push
from istbench.launch.hosts.run import HostsRun, run_named_by
from istbench.launch.processes.launcher import Signals
from istbench.results.store import RunDirectory

_POLL_S = 0.5
_STARTS_S = 60.0
Cells = Sequence[tuple[HostsRun, Sequence[Host]]]


def detach(
    cells: Cells, pythons: Sequence[str], config: Path | None, say: Say, *, worked_by: str, named_by: str
) -> None:
    """Start `cells`, each with its hosts, one after another from the first host; return when the first one starts.

    Args:
        config: the file that ssh reads. The first host gets the keys that it names, until the cells end.
        worked_by: the module that works on the job there. named_by: the module that computes names of cells.

    Raises:
        Unfit: with a line for each problem of a host, also if the first host does not reach another one by ssh.
        UserError, RunFailed: if the first cell fails at once. KeyboardInterrupt: after a signal.
    """
    hosts = max((own for _, own in cells), key=len)
    with Signals() as signals, connected(hosts, pythons, config) as (connections, _), signals.raised():
        first, out = connections[0], cells[0][0].out
        absent = dict.fromkeys(path for run, _ in cells for path in run.absent)
        group = gather(connections, Needs(paths=tuple(absent), out=out))
        with _naming(first):
            for run, _ in cells:
                if _report(first, run) is not None:
                    raise UserError(
                        f"{first.name} runs this command detached already; the same command without --detach "
                        "follows it, and --stop ends it"
                    )
            paths = dict.fromkeys(path for run, _ in cells for path in run.paths)
            there = push([first], tuple(paths), say)[first.name]
            theirs = Path(group.facts[first.name].folder) / out
            if not group.facts[first.name].shared:
                _bring_unfinished(first, [run for run, _ in cells], there, theirs, say, named_by)
            job = DetachedJob(
                cells=[_job_cell(run, own, there, theirs) for run, own in cells],
                out=str(theirs),
                pythons=list(pythons),
            )
            files = _ssh_files(hosts[1:], group.addresses, config)
            keys = [name for name in files if name.startswith("key-")]
            if keys:
                say(f"copied {len(keys)} ssh key(s) to {first.name}, which deletes them when the cells end")
            start = first.ask(
                "start_detached", content=msgspec.json.encode(job), files=files, by=worked_by, within_s=_STARTS_S
            )
            first.answer(start, 2 * _STARTS_S)
            _await_start(first, cells[0][0])
    count = f"{len(cells)} cells" if len(cells) > 1 else "the cell"
    say(
        f"{hosts[0].name} runs {count} on its own now; the same command without --detach follows and copies the "
        "results here, and --stop ends it"
    )


def follow(
    hosts: Sequence[Host],
    pythons: Sequence[str],
    run: HostsRun,
    say: Say,
    config: Path | None = None,
    *,
    stopped: bool = False,
    started: Callable[[str], None] = lambda _cell: None,
) -> RunDirectory | None:
    """Follow the cell of `run` to its end if it runs detached; returns the local run directory, else None.

    started: called with the name of the cell once it is known.

    Raises:
        Unfit, UserError, RunFailed: as the run there. KeyboardInterrupt: after a signal here, which leaves the cell
            running, or after one there.
    """
    with Signals() as signals, connected(hosts[:1], pythons, config) as ((first,), _), signals.raised():
        try:
            facts, _ = survey([first], Needs(paths=(), out=run.out))
            report = _report(first, run)
        except (Unfit, Lost, Refused):  # the run that follows reports it
            return None
        if report is None:
            return None
        with _naming(first):
            return _Following(first, run, facts[first.name].shared, say, started).to_end(report, stopped)


def stop(hosts: Sequence[Host], pythons: Sequence[str], runs: Sequence[HostsRun], config: Path | None) -> None:
    """End the detached job of `runs`, as Ctrl-C does; `follow` then copies the results.

    Raises:
        UserError: if none of them runs detached. Unfit: if the first host does not answer.
    """
    with connected(hosts[:1], pythons, config) as ((first,), _):
        survey([first], Needs(paths=(), out=runs[0].out, marks=False))
        with _naming(first):
            stopped = [first.do("stop_detached", key=run.key) for run in runs]
            if not any(stopped):
                raise UserError(f"nothing of this command runs detached on {first.name}; leave out --stop")


class _Following:
    """Follows one detached cell of host `first`."""

    def __init__(
        self, first: Connection, run: HostsRun, shared: bool, say: Say, started: Callable[[str], None]
    ) -> None:
        self._first, self._run, self._shared = first, run, shared
        self._say, self._started = say, started

    def to_end(self, report: CellReport, stopped: bool) -> RunDirectory:
        """Print the log of the cell and copy its results here, meanwhile and when it ends.

        Raises:
            RunFailed, UserError, Unfit: if it failed. KeyboardInterrupt: after a signal, here or there.
        """
        own = f"the cell that {self._first.name} runs on its own"
        self._say(f"{own} stops after a step" if stopped else f"following {own}; Ctrl-C leaves it running")
        here: RunDirectory | None = None
        with ExitStack() as stack:
            try:
                while True:
                    for line in report.lines:
                        self._say(printable(line.rstrip("\n")))
                    if report.state.cell and here is None:
                        here = run_named_by(self._first.name, report.state.cell, self._run.out)
                        self._started(report.state.cell)
                        if not self._shared:
                            stack.enter_context(here.locked())
                            stack.enter_context(self._fetching(here, report.out))
                    if report.state.phase not in ("waiting", "running") and not report.lines:
                        break
                    time.sleep(0 if report.lines else _POLL_S)
                    report = self._next(report)
            except KeyboardInterrupt:
                self._say(f"{self._first.name} goes on; the same command follows it again, and --stop ends it")
                raise
            stack.close()  # the copies meanwhile have ended
            if here is not None:
                with nullcontext() if self._shared else here.locked():
                    self._fetch_all(here, report)
        return _result(self._first, self._run, report.state, here)

    def _next(self, report: CellReport) -> CellReport:
        found = _report(self._first, self._run, report.offset)
        if found is None:
            raise RunFailed(
                f"{self._first.name}: the detached cell has ended without a result, or another command took its "
                "result; run the same command again"
            )
        return found

    @contextlib.contextmanager
    def _fetching(self, here: RunDirectory, out: str) -> Iterator[None]:
        theirs, every_s = f"{out}/runs/{here.path.name}", self._run.request.checkpoint_every_s
        meanwhile = Meanwhile(
            lambda pace: fetch_newer(self._first, theirs, here.path, pace, again=self._run.again),
            self._say,
            every_s,
        )
        meanwhile.start()
        try:
            yield
        finally:
            meanwhile.join()

    def _fetch_all(self, here: RunDirectory, report: CellReport) -> None:
        if not self._shared:
            fetch_newer(self._first, f"{report.out}/runs/{here.path.name}", here.path, again=self._run.again)
        save = self._run.save_in(report.out)
        if report.state.phase == "done" and save is not None and self._run.request.save is not None:
            fetch_weights(self._first, str(save), self._run.request.save, here, self._say)


def _result(first: Connection, run: HostsRun, state: CellState, here: RunDirectory | None) -> RunDirectory:
    """The run directory of a cell that is done; forgets the cell on host `first`, and raises if it failed."""
    first.do("take_detached", key=run.key)
    if state.phase == "unfit":
        raise Unfit([f"{line} (seen from {first.name})" for line in state.message.splitlines()])
    if state.phase == "failed":
        raise (UserError if state.wrong_use else RunFailed)(state.message)
    if state.phase == "interrupted" or here is None:
        raise KeyboardInterrupt
    return here


def _report(first: Connection, run: HostsRun, offset: int = 0) -> CellReport | None:
    """The report of the cell of `run` on host `first`; None if none of its jobs has it."""
    found = first.do("report_detached", key=run.key, offset=offset)
    return None if found is None else convert(found, CellReport, lambda path: f"{first.name}: {path_text(path)}")


def _await_start(first: Connection, run: HostsRun) -> None:
    """Return once the cell of `run` has started; raises if it fails before."""
    while (report := _report(first, run)) is not None:
        if report.state.phase in ("running", "done"):
            return
        if report.state.phase != "waiting":
            _result(first, run, report.state, None)
        time.sleep(_POLL_S)
    raise RunFailed(f"{first.name}: the detached istbench ended before it trained; run the same command again")


@contextlib.contextmanager
def _naming(first: Connection) -> Iterator[None]:
    """Turn failures of host `first` into `RunFailed`."""
    try:
        yield
    except (Lost, Refused) as error:
        raise RunFailed(f"{first.name}: {error}; a detached cell goes on; the same command follows it") from None


def _job_cell(run: HostsRun, hosts: Sequence[Host], there: Mapping[str, str], theirs: Path) -> JobCell:
    words = run.words(there, run.save_in(str(theirs)))
    own = [dataclasses.replace(hosts[0], local=True), *hosts[1:]]
    return JobCell(key=run.key, words=list(words), nodes=run.request.nodes, again=run.again, hosts=own)


def _bring_unfinished(
    first: Connection, runs: Sequence[HostsRun], there: Mapping[str, str], theirs: Path, say: Say, by: str
) -> None:
    """Copy unfinished runs of `runs` to host `first`, where they are further than there."""
    possible = [run for run in runs if not run.again and runs_alike(run.request, run.out, done=False)]
    if not possible:
        return
    for run, name in zip(possible, name_cells_there(first, possible, there, by), strict=False):
        if name and bring(first, RunDirectory.of(run.out, name).path, f"{theirs}/runs/{name}"):
            say(f"copied the earlier part of {name} to {first.name}")


def _ssh_files(hosts: Sequence[Host], addresses: Mapping[str, str], config: Path | None) -> dict[str, str]:
    """Files that ssh on the first host needs to reach the other `hosts`: configuration, host keys and keys.

    The hosts reach one another at `addresses`. In the configuration, `{folder}` stands for the directory of the
    files.
    """
    files, known, blocks = {}, [], []
    for number, host in enumerate(hosts):
        settings = _settings(host, config)
        alias = f"istbench-{number}"
        keys = _host_keys(host, settings)
        known += [f"{alias} {key}" for key in keys]
        block = {
            "HostName": addresses[host.name],
            "HostKeyAlias": alias,
            "UserKnownHostsFile": "{folder}/known_hosts",
            "User": settings["user"][0],
            "Port": settings["port"][0],
        }
        if not keys:
            strict = settings.get("stricthostkeychecking", ["ask"])[0]
            block["StrictHostKeyChecking"] = {"false": "no", "true": "yes"}.get(strict, strict)
        lines = [
            f"Host {host.destination.rpartition('@')[2]}",
            *(f"  {name} {value}" for name, value in block.items()),
        ]
        for path in _named_keys(host, config, settings):
            name = f"key-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
            files[name] = read_text(path, "a private key of ssh")
            lines.append(f"  IdentityFile {{folder}}/{name}")
        blocks.append("\n".join(lines))
    files[CONFIG] = "\n".join([*blocks, "Match all", "Include ~/.ssh/config", ""])
    files["known_hosts"] = "\n".join([*known, ""])
    return files


def _settings(host: Host, config: Path | None) -> dict[str, list[str]]:
    """The settings of ssh for `host`, as `ssh -G` prints them: values by name."""
    printed = subprocess.run(
        ["ssh", *way(host, config), "-G", host.destination], capture_output=True, text=True, check=False
    ).stdout
    found: dict[str, list[str]] = {}
    for line in printed.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    if not {"user", "port", "hostname"} <= found.keys():
        raise UserError(f"{host.name}: `ssh -G {host.destination}` fails; mend the ssh configuration")
    return found


def _host_keys(host: Host, settings: Mapping[str, Sequence[str]]) -> list[str]:
    """The known keys of `host`: types and keys."""
    name, port = settings.get("hostkeyalias", settings["hostname"])[0], settings["port"][0]
    lookup = name if port == "22" or "hostkeyalias" in settings else f"[{name}]:{port}"
    found = []
    named = " ".join(settings.get("userknownhostsfile", []))  # one path with spaces, or several paths
    for file in [named] if Path(named).expanduser().is_file() else named.split():
        printed = subprocess.run(
            ["ssh-keygen", "-F", lookup, "-f", str(Path(file).expanduser())],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        found += [
            line.split(maxsplit=1)[1] for line in printed.splitlines() if line and not line.startswith(("#", "@"))
        ]
    return list(dict.fromkeys(found))


def _named_keys(host: Host, config: Path | None, settings: Mapping[str, Sequence[str]]) -> list[Path]:
    """The private keys that `config` names for `host`, without those that ssh tries by itself."""
    if config is None:
        return []
    usual = _settings(Host(host.name), Path("/dev/null")).get("identityfile", [])
    named = [Path(text).expanduser() for text in settings.get("identityfile", []) if text not in usual]
    return [path for path in named if path.is_file()]
