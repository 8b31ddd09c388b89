"""A group of hosts: their facts, the addresses by which they reach one another, and a line for each problem."""

import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

import istbench
from istbench.base.files import is_there, write_errors
from istbench.base.options.numbers import Count, Duration, Natural
from istbench.launch.hosts.connection import ANSWERS_S, Connection, ask_each, each, told

T = TypeVar("T")
Place = tuple[str, int, str]
"""Where a host listens: its address, port, and the token of its callers."""
FreeBytes = Annotated[int, msgspec.Meta(ge=0)]  # network file systems report up to 2**63
LEAST_FREE = 100 * 2**20
MOST_CLOCK_S = 30.0
_CLOCK_READINGS = 3
_ALL_PORTS = "have the firewall let the hosts reach one another at all ports"


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a host reports.

    Attributes:
        host: its own hostname. machine: identifies the machine.
        python, istbench, torch: versions, None if absent. executable: the Python.
        folder: the directory where commands start. missing: paths of the command that do not exist there.
        shared: whether its results directory is that of the local machine.
        free, free_scratch: bytes in the results directory and for temporary files; None if not writable.
        addresses: IPv4 addresses of all interfaces but loopback.
    """

    host: str
    machine: str
    python: str
    executable: str
    istbench: str | None = None
    torch: str | None = None
    cores: Count
    gpus: Natural
    folder: str
    missing: list[str]
    shared: bool
    free: FreeBytes | None = None
    free_scratch: FreeBytes | None = None
    addresses: list[str]


class HostClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of a host: seconds ahead of the local clock, give or take `within_s`."""

    ahead_s: float
    within_s: float

    def __str__(self) -> str:
        return f"{self.ahead_s:+.3f} s" if self.within_s < 0.01 else f"{self.ahead_s:+.2f} ± {self.within_s:.2f} s"


def clock_of(readings: Sequence[tuple[float, float, float]]) -> HostClock:
    """The clock of a host from several readings: local time before, time there, local time after; seconds."""
    before, there, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return HostClock(ahead_s=there - (before + after) / 2, within_s=(after - before) / 2)


def problems_of(
    facts: Mapping[str, HostFacts], clocks: Mapping[str, HostClock], versions: Mapping[str, str], out: str
) -> list[str]:
    """The problems of hosts; each line names a host and the way out.

    Args:
        versions: of the local machine. out: the results directory, on the first host.
    """
    found = _same_machine(facts)
    for name, host in facts.items():
        own = [
            *_of_versions(host, versions),
            *(f"no {path} there (seen from {host.folder})" for path in host.missing),
            *_of_clock(clocks.get(name)),
            *_of_space(host, out if name == next(iter(facts)) else None),
        ]
        found += [f"{name}: {problem}" for problem in own]
    return found


def _same_machine(facts: Mapping[str, HostFacts]) -> list[str]:
    seen: dict[str, str] = {}
    found = []
    for name, host in facts.items():
        other = seen.setdefault(host.machine, name)
        if other != name:
            found.append(
                f"{name}: it is the same machine as {other} ({host.host}); name it once, in a file of hosts with "
                "slots=2 for two processes"
            )
    return found


def _of_versions(host: HostFacts, versions: Mapping[str, str]) -> list[str]:
    there = {"istbench": host.istbench, "torch": host.torch, "Python": host.python}
    if there["istbench"] is None:
        return [
            f"no istbench for {host.executable}; --install installs istbench {versions['istbench']} there, or name "
            "a Python that has it by --hosts-python"
        ]
    differing = [
        f"{what} {version or 'none'} ({versions[what]} here)"
        for what, version in there.items()
        if _minor(what, version) != _minor(what, versions[what])
    ]
    return (
        [f"it has {', '.join(differing)}; install the same on every host, as --install does"] if differing else []
    )


def _minor(what: str, version: str | None) -> str | None:
    """The part of a version that must be equal: a build of torch, as for CPUs, may differ from the local one."""
    if what == "Python" and version:
        return version.rpartition(".")[0]
    return version.partition("+")[0] if version else version


def _of_clock(clock: HostClock | None) -> list[str]:
    if clock is None or abs(clock.ahead_s) - clock.within_s <= MOST_CLOCK_S:
        return []
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    return [f"its clock is {_duration(abs(clock.ahead_s))} {way} this host's; set it, by NTP for instance"]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _of_space(host: HostFacts, out: str | None) -> list[str]:
    places = [(host.free_scratch, "temporary files", "free some, or set TMPDIR there")]
    if out is not None:
        places.append((host.free, out, "free some, or choose another --out"))
    found = []
    for free, what, way_out in places:
        if free is None:
            found.append(f"cannot write {what} there; {way_out}")
        elif free < LEAST_FREE:
            found.append(f"only {free / 2**20:.0f} MiB are free for {what} there; {way_out}")
    return found


class Unfit(Exception):  # noqa: N818
    """Hosts cannot train together; a line for each reason. `gone` are those that cannot be reached."""

    def __init__(self, problems: Sequence[str], gone: Collection[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.gone = list(problems), frozenset(gone)


class Unlinked(Unfit):
    """Hosts answer this machine but not one another, as when a link between them fails."""


Say = Callable[[str], None]
"""Prints a line for the user."""


@dataclass(frozen=True, kw_only=True)
class HostGroup:
    """Hosts that can train together.

    Attributes:
        facts, clocks: by host. addresses: by host, the address by which the others reach it.
        port: a free port of the first host that the others reached.
    """

    facts: dict[str, HostFacts]
    clocks: dict[str, HostClock]
    addresses: dict[str, str]
    port: int


def gather(
    connections: Sequence[Connection], out: Path, paths: Iterable[str] = (), *, marks: bool = True
) -> HostGroup:
    """Collect the facts of all hosts as `survey` does, and test whether they reach one another.

    Raises:
        Unfit: with a line for every host that does not answer, or does not fit. Unlinked: as `_reached`.
    """
    facts, clocks = survey(connections, out, paths, marks=marks)
    addresses, port = _reached(connections, facts)
    return HostGroup(facts=facts, clocks=clocks, addresses=addresses, port=port)


def survey(
    connections: Sequence[Connection], out: Path, paths: Iterable[str] = (), *, marks: bool = True
) -> tuple[dict[str, HostFacts], dict[str, HostClock]]:
    """The facts and clocks of all hosts, by name.

    Args:
        out: the results directory. paths: files and directories that must exist there, unless they exist here.
        marks: whether to find out if `out` is the same directory on the hosts as here.

    Raises:
        Unfit: as `gather`.
    """
    greeted, lost = each(connections, Connection.greet)
    answering = [connection for connection in connections if connection.name in greeted]
    facts, found = _facts(answering, out, paths, marks)
    clocks, more = _clocks(answering)
    found = [*lost, *found, *more, *problems_of(facts, clocks, own_versions(), str(out))]
    if found:
        raise Unfit(found, {connection.name for connection in connections} - greeted.keys())
    return facts, clocks


def own_versions() -> dict[str, str]:
    """Versions here, without importing torch."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return {"istbench": istbench.__version__, "torch": torch, "Python": sys.version.split()[0]}


def _facts(
    connections: Sequence[Connection], out: Path, paths: Iterable[str], marks: bool
) -> tuple[dict[str, HostFacts], list[str]]:
    absent = [path for path in paths if not is_there(path)]
    marker = out / f".istbench-{secrets.token_hex(8)}"
    with write_errors(out):
        if marks:
            out.mkdir(parents=True, exist_ok=True)
            marker.touch()
    question = {"folder": str(Path.cwd()), "paths": absent, "out": str(out), "marker": marker.name}
    try:
        answers, found = ask_each(connections, "facts", lambda _: question)
    finally:
        marker.unlink(missing_ok=True)
    return {name: told(name, answer, HostFacts) for name, answer in answers.items()}, found


def _clocks(connections: Sequence[Connection]) -> tuple[dict[str, HostClock], list[str]]:
    def read(connection: Connection) -> HostClock:
        readings = []
        for _ in range(_CLOCK_READINGS):
            before = time.time()
            there = told(connection.name, connection.do("clock"), Duration)
            readings.append((before, there, time.time()))
        return clock_of(readings)

    return each(connections, read)


def _reached(connections: Sequence[Connection], facts: dict[str, HostFacts]) -> tuple[dict[str, str], int]:
    """The address by which all others reach each host, and a port of the first host that they reached.

    Workers call the first host. So each other host has the address at which it calls.

    Raises:
        Unlinked: with a line for hosts that do not reach one another.
    """
    first, *others = (connection.name for connection in connections)
    try:
        listeners = listening(connections, dict.fromkeys(facts, ""))
        _, port, token = listeners[first]
        if not others:
            return {first: "127.0.0.1"}, port
        addresses, callers = _tried(connections, {first: [(at, port, token) for at in facts[first].addresses]})
        called = addresses[first], port, token
        ways = {name: [(callers[name][called], *listeners[name][1:])] for name in others}
        return addresses | _tried(connections, ways)[0], port
    except Unfit as unfit:
        raise Unlinked(unfit.problems) from None
    finally:
        each(connections, lambda connection: connection.do("stop_listening"))


def _tried(
    connections: Sequence[Connection], places: Mapping[str, Sequence[Place]]
) -> tuple[dict[str, str], dict[str, dict[Place, str]]]:
    """The addresses as in `choose_addresses`; and by host, its own address at which it called each place.

    Raises:
        Unfit: with a line for each failure.
    """
    each_one = [place for own in places.values() for place in own]
    answers = ask_all(connections, "try_connections", list[tuple[str, str]], lambda _: {"places": each_one})
    if wrong := [name for name, own in answers.items() if len(own) != len(each_one)]:
        raise Unfit([f"{name}: it tested another number of addresses than it was sent" for name in wrong])
    answered = {name: dict(zip(each_one, own, strict=True)) for name, own in answers.items()}
    reasons, callers = (
        {name: {place: both[part] for place, both in own.items()} for name, own in answered.items()}
        for part in (1, 0)
    )
    addresses, found = choose_addresses(places, reasons)
    if found:
        raise Unfit(found)
    return addresses, callers


def choose_addresses(
    places: Mapping[str, Sequence[Place]], reasons: Mapping[str, Mapping[Place, str]]
) -> tuple[dict[str, str], list[str]]:
    """By host, the first address at which all others reach it; and a line for each failure.

    Args:
        places: by host, where it may be reached. reasons: by host, why it fails to reach a place, "" if it does.
    """
    addresses, found = {}, []
    for name, own in places.items():
        others = {other: [of[place] for place in own] for other, of in reasons.items() if other != name}
        suitable = [place[0] for place, *whys in zip(own, *others.values(), strict=True) if not any(whys)]
        if suitable:
            addresses[name] = suitable[0]
            continue
        lines = []
        for other, whys in others.items():
            if all(whys):
                tried = [f"{at}, port {port} ({why})" for (at, port, _), why in zip(own, whys, strict=True)]
                at = ", nor ".join(tried) or "any address"
                lines.append(f"{other}: does not reach {name} at {at}; {_ALL_PORTS}")
        ats = ", ".join(at for at, *_ in own)
        found += lines or [f"{name}: no address of it ({ats}) is reachable from all other hosts; {_ALL_PORTS}"]
    return addresses, found


def listening(connections: Sequence[Connection], addresses: Mapping[str, str]) -> dict[str, Place]:
    """Make every host listen at its address, at all that it has if that is empty; returns the places by host."""
    tokens = {name: secrets.token_hex(32) for name in addresses}
    ports = ask_all(
        connections, "listen", int, lambda host: {"address": addresses[host.name], "token": tokens[host.name]}
    )
    return {name: (addresses[name], port, tokens[name]) for name, port in ports.items()}


def ask_all(
    connections: Sequence[Connection],
    do: str,
    kind: type[T],
    arguments: Callable[[Connection], Mapping[str, Any]] = lambda _: {},
    timeout_s: float = ANSWERS_S,
) -> dict[str, T]:
    """As `ask_each`; the answers of all hosts, each a `kind`.

    Raises:
        Unfit: with a line for each host that fails. UserError: naming a host that answers with another type.
    """
    answers, found = ask_each(connections, do, arguments, timeout_s)
    if found:
        raise Unfit(found)
    return {name: told(name, answer, kind) for name, answer in answers.items()}
