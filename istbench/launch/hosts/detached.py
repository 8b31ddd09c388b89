"""Cells that run on without this machine: the first host requests them from the others, and keeps their results.

The same command finds them again by the hash of the typed request, follows them, and copies the results here.
"""

import contextlib
import dataclasses
import hashlib
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from istbench.base.decode import encode_own, read_text
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.texts import Text
from istbench.launch.hosts.connection import Connection, Lost, Refused, connected, told, way
from istbench.launch.hosts.finished_cells import name_cells_there, runs_alike
from istbench.launch.hosts.group import Say, Unfit, gather, survey
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.push import push
from istbench.launch.hosts.remote_detached import CONFIG, JOB
from istbench.launch.hosts.run import HostsRun, Session, paths_of
from istbench.launch.hosts.run_copies import bring
from istbench.results.store import RunDirectory

_STARTS_S = 60.0
_GOES_ON = "a detached cell goes on; the same command follows it"


def detach(runs: Sequence[HostsRun], say: Say) -> None:
    """Start the cells of `runs` one after another from the first host; return when the first one starts.

    The first host gets the keys that their configuration of ssh names, until the cells end.

    Raises:
        Unfit: with a line for each problem of a host, also if the first host does not reach another one by ssh.
        UserError, RunFailed: if the first cell fails at once. KeyboardInterrupt: after a signal.
    """
    most, out = max(runs, key=lambda run: len(run.hosts)), runs[0].out
    with connected(most.hosts, most.pythons, most.config) as (connections, events):
        first = connections[0]
        group = gather(connections, out, paths_of(runs))
        with _naming(first):
            for run in runs:
                if told(first.name, first.do("has_detached", key=run.key), bool):
                    raise UserError(
                        f"{first.name} runs this command detached already; the same command without --detach "
                        "follows it, and --stop ends it"
                    )
            there = push([first], paths_of(runs), say)[first.name]
            facts = group.facts[first.name]
            theirs = Path(facts.folder) / out
            if not facts.shared:
                _bring_unfinished(first, runs, there, theirs, say)
            files = _ssh_files(most.hosts[1:], group.addresses, most.config)
            keys = [name for name in files if name.startswith("key-")]
            if keys:
                say(f"copied {len(keys)} ssh key(s) to {first.name}, which deletes them when the cells end")
            job = {run.key: _run_there(run, there, theirs) for run in runs}
            files[JOB] = msgspec.json.encode(job, enc_hook=encode_own).decode()
            first.do("start_detached", 2 * _STARTS_S, files=files, within_s=_STARTS_S)
            run = runs[0]
            if first.do("follow_detached", key=run.key) is None:
                raise RunFailed(
                    f"{first.name}: the detached istbench ended before it trained; run the same command again"
                )
            _Detached([first], events, run, str(theirs), facts.shared, say, lambda _cell: None).await_start()
    count = f"{len(runs)} cells" if len(runs) > 1 else "the cell"
    say(
        f"{first.name} runs {count} on its own now; the same command without --detach follows and copies the "
        "results here, and --stop ends it"
    )


def follow(
    run: HostsRun,
    say: Say,
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
    with connected(run.hosts[:1], run.pythons, run.config) as ((first,), events):
        try:
            facts, _ = survey([first], run.out)
            theirs = first.do("follow_detached", key=run.key)
        except (Unfit, Lost, Refused):  # the run that follows reports it
            return None
        if theirs is None:
            return None
        out = told(first.name, theirs, Text)
        session = _Detached([first], events, run, out, facts[first.name].shared, say, started)
        with _naming(first):
            return session.follow(stopped)


def stop(runs: Sequence[HostsRun]) -> None:
    """End the detached job of `runs`, as Ctrl-C does; `follow` then copies the results.

    Raises:
        UserError: if none of them runs detached. Unfit: if the first host does not answer.
    """
    run = runs[0]
    with connected(run.hosts[:1], run.pythons, run.config) as ((first,), _):
        survey([first], run.out, marks=False)
        with _naming(first):
            # One job has all cells of a command, and a second signal would not let it stop by itself.
            if not any(told(first.name, first.do("stop_detached", key=run.key), bool) for run in runs):
                raise UserError(f"nothing of this command runs detached on {first.name}; leave out --stop")


class _Detached(Session):
    """A cell that the first host runs on its own, and whose messages it passes on."""

    def await_start(self) -> None:
        """Return once the cell has started; raise as `to_end` if it ends before."""
        self._watch(lambda: self._cell is not None)
        if self._cell is None:
            self._await_cell()

    def follow(self, stopped: bool) -> RunDirectory:
        """Follow the cell to its end, as `to_end` does. stopped: whether it was told to stop."""
        own = f"the cell that {self._first.name} runs on its own"
        self._say(f"{own} stops after a step" if stopped else f"following {own}; Ctrl-C leaves it running")
        try:
            return self.to_end()
        except KeyboardInterrupt:
            if not self._ends:
                self._say(f"{self._first.name} goes on; the same command follows it again, and --stop ends it")
            raise

    def _begin(self, here: RunDirectory, theirs: str) -> None:
        """The cell trains already."""

    def _interrupt(self) -> None:
        raise KeyboardInterrupt

    def _release(self) -> None:
        if self._ends:
            self._first.do("take_detached", key=self._run.key)

    def _recorded(self, cause: BaseException) -> BaseException:
        return cause

    def _when(self) -> str:
        return ""

    def _way_out(self) -> str:
        return _GOES_ON


@contextlib.contextmanager
def _naming(first: Connection) -> Iterator[None]:
    """Turn failures of host `first` into `RunFailed`."""
    try:
        yield
    except (Lost, Refused) as error:
        raise RunFailed(f"{first.name}: {error}; {_GOES_ON}") from None


def _run_there(run: HostsRun, there: Mapping[str, str], theirs: Path) -> HostsRun:
    """`run` as the first host runs it, with its own paths and the results directory `theirs`."""
    hosts = [dataclasses.replace(run.hosts[0], local=True), *run.hosts[1:]]
    request = run.request_there(there, run.save_in(str(theirs)))
    return dataclasses.replace(run, request=request, out=theirs, hosts=hosts, config=None)


def _bring_unfinished(
    first: Connection, runs: Sequence[HostsRun], there: Mapping[str, str], theirs: Path, say: Say
) -> None:
    """Copy unfinished runs of `runs` to host `first`, where they are further than there."""
    possible = [run for run in runs if not run.again and runs_alike(run.request, run.out, done=False)]
    if not possible:
        return
    for run, name in zip(possible, name_cells_there(first, possible, there), strict=False):
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
    found: dict[str, list[str]] = {}
    for line in _printed("ssh", *way(host, config), "-G", host.destination):
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
        lines = _printed("ssh-keygen", "-F", lookup, "-f", str(Path(file).expanduser()))
        found += [line.split(maxsplit=1)[1] for line in lines if line and not line.startswith(("#", "@"))]
    return list(dict.fromkeys(found))


def _printed(*words: str) -> list[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()


def _named_keys(host: Host, config: Path | None, settings: Mapping[str, Sequence[str]]) -> list[Path]:
    """The private keys that `config` names for `host`, without those that ssh tries by itself."""
    if config is None:
        return []
    usual = _settings(Host(host.name), Path("/dev/null")).get("identityfile", [])
    named = [Path(text).expanduser() for text in settings.get("identityfile", []) if text not in usual]
    return [path for path in named if path.is_file()]
