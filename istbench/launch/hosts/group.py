"""A group of hosts: their facts, the addresses by which they reach one another, and reasons to refuse them."""

import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import istbench
from istbench.base.files import is_there, write_errors
from istbench.launch.hosts.check import (
    HostClock,
    HostFacts,
    choose_address,
    clock_of,
    problems,
    unreachable,
    unreached_pairs,
)
from istbench.launch.hosts.connection import Connection, Lost, Refused, ask_each, each, told

_CLOCK_READINGS = 3


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
    found = [*lost, *found, *more, *problems(facts, clocks, own_versions(), str(out))]
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
            there = float(connection.do("clock"))
            readings.append((before, there, time.time()))
        return clock_of(readings)

    return each(connections, read)


def _reached(connections: Sequence[Connection], facts: dict[str, HostFacts]) -> tuple[dict[str, str], int]:
    """The address by which all others reach each host, and a port of the first host that they reached.

    Raises:
        Unlinked: with a line for hosts that do not reach one another.
    """
    first, others = connections[0], connections[1:]
    token = secrets.token_hex(32)
    try:
        port = int(first.do("listen", address="", token=token))
        if not others:
            return {first.name: "127.0.0.1"}, port
        candidates = facts[first.name].addresses
        places = [(address, port) for address in candidates]
        reached = _ask_all(others, "try_connections", lambda _: {"places": places, "token": token})
        chosen = choose_address(candidates, reached)
        if chosen is None:
            raise Unlinked(unreachable(first.name, candidates, port, reached))
        number = candidates.index(chosen)
        addresses = {first.name: chosen, **{name: of[number][0] for name, of in reached.items()}}
        _check_pairs(connections, addresses, token)
        return addresses, port
    except (Lost, Refused) as error:
        raise Unlinked([f"{first.name}: {error}"]) from None
    finally:
        each(connections, lambda connection: connection.do("stop_listening"))


def listening(
    connections: Sequence[Connection], addresses: Mapping[str, str], token: str
) -> dict[str, tuple[str, int]]:
    """Make every host listen at its address for callers with `token`; returns address and port by host."""
    ports = _ask_all(connections, "listen", lambda host: {"address": addresses[host.name], "token": token})
    return {name: (addresses[name], int(port)) for name, port in ports.items()}


def _check_pairs(connections: Sequence[Connection], addresses: dict[str, str], token: str) -> None:
    places = listening(connections, addresses, token)
    question = {"places": list(places.values()), "token": token}
    answers = _ask_all(connections, "try_connections", lambda _: question)
    tried = {name: dict(zip(places, found, strict=True)) for name, found in answers.items()}
    found = unreached_pairs(tried, places)
    if found:
        raise Unlinked(found)


def _ask_all(
    connections: Sequence[Connection], do: str, arguments: Callable[[Connection], Mapping[str, Any]]
) -> dict[str, Any]:
    answers, found = ask_each(connections, do, arguments)
    if found:
        raise Unlinked(found)
    return answers
