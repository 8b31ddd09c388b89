"""Hosts that a user names: a list on the command line, or a file with one host per line."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from istbench.base.decode import read_text
from istbench.base.decode.files import name_problem
from istbench.base.errors import UserError, shown

_MOST_HOSTS, _MOST_SLOTS = 1000, 256
_LONGEST = 255
_MOST_PORT = 65535
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.%-]*"
_IPV6 = r"[0-9A-Fa-f.:]*:[0-9A-Fa-f.:]*(?:%[A-Za-z0-9_.-]+)?"
_NAME = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?(?:(?:({_WORD})|\[({_IPV6})\])(?::([0-9]*))?|({_IPV6}))")
_SLOTS = re.compile(r"slots=([0-9]{1,4})")
_A_FILE = "a file of hosts, one a line"


@dataclass(frozen=True)
class Host:
    """A host by the name that the user gave, and its number of processes, each a node.

    Attributes:
        name: `user@host:port` or less, as `parse_hosts` takes it.
        slots: processes on it. local: whether it is this machine, which needs no ssh.
    """

    name: str
    slots: int = 1
    local: bool = False

    @property
    def destination(self) -> str:
        """The name without a port, as ssh takes it."""
        return (_destination_and_port(self.name) or (self.name, None))[0]

    @property
    def port(self) -> str | None:
        """The digits of the port in the name, None where it has none."""
        return (_destination_and_port(self.name) or (self.name, None))[1]


def parse_hosts(text: str, flag: str = "--hosts") -> tuple[Host, ...]:
    """The hosts of `text`: names between commas, or the name of a file of them.

    A name is `host`, `user@host` or `user@host:port`. An IPv6 address with a port is in brackets: `[fe80::1]:22`.
    A line of such a file is a name, and `slots=N` for another number of processes than one; `#` starts a comment.

    Raises:
        UserError: for an invalid name, a repeated name or no host at all, with the file and the line.
    """
    path = Path(text)
    if "/" in text or ("," not in text and name_problem(text) is None and path.is_file()):
        named = list(_in_file(read_text(path, _A_FILE), str(path)))
        where = str(path)
    else:
        named = [(Host(_checked(part.strip(), flag)), flag) for part in text.split(",") if part.strip()]
        where = flag
    if not named:
        raise UserError(f"{where} names no host; give names between commas, or {_A_FILE}")
    if len(named) > _MOST_HOSTS:
        raise UserError(f"{where} names {len(named)} hosts, more than {_MOST_HOSTS}")
    seen: set[str] = set()
    for host, there in named:
        if host.name in seen:
            raise UserError(f"{there} names {host.name} twice; for two processes on it, give a file with slots=2")
        seen.add(host.name)
    return tuple(host for host, _ in named)


def first_of(hosts: Sequence[Host], nodes: int) -> tuple[Host, ...]:
    """The first of `hosts` that have `nodes` processes together; the last one may use fewer slots than it has.

    Raises:
        UserError: if all together have fewer.
    """
    taken: list[Host] = []
    for host in hosts:
        if nodes > 0:
            taken.append(Host(host.name, min(nodes, host.slots)))
            nodes -= host.slots
    if nodes > 0:
        there = sum(host.slots for host in hosts)
        raise UserError(f"--hosts has {there} processes for {there + nodes} nodes; name more hosts, or slots")
    return tuple(taken)


def _in_file(text: str, path: str) -> Iterator[tuple[Host, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words, where = line.partition("#")[0].split(), f"{path}, line {number},"
        if not words:
            continue
        slots = _SLOTS.fullmatch(words[1]) if len(words) == 2 else None
        count = int(slots[1]) if slots else 1
        if len(words) > 2 or (len(words) == 2 and slots is None) or not 1 <= count <= _MOST_SLOTS:
            raise UserError(
                f"{where} is {shown(line.strip())}; write a host's name, and slots=N (1 to {_MOST_SLOTS}) for more "
                "processes than one"
            )
        yield Host(_checked(words[0], where), count), where


def _checked(name: str, where: str) -> str:
    found = _destination_and_port(name) if len(name) <= _LONGEST else None
    if found is None:
        raise UserError(
            f"{where} {shown(name)} is no name of a host; write it as for ssh: name, user@name, user@name:port, or "
            "[address]:port for IPv6"
        )
    port = found[1]
    if port is not None and not (port and port[0] != "0" and int(port) <= _MOST_PORT):
        raise UserError(f"{where} {shown(name)} has an impossible port; give 1 to {_MOST_PORT}, or leave it out")
    return name


def _destination_and_port(name: str) -> tuple[str, str | None] | None:
    """The user and host of `name`, and the digits of its port, if any; None for an invalid name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    user, word, in_brackets, port, bare = found.groups()
    if not word:
        try:
            ipaddress.IPv6Address(in_brackets or bare)
        except ValueError:
            return None
    return f"{user or ''}{word or in_brackets or bare}", port
