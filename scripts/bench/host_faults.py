"""Make and repair faults of the hosts of tests/ssh_hosts.py, for scripts that show the messages."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from ssh_hosts import Hosts, hosts, why_not

__all__ = [
    "DeadServer",
    "Hosts",
    "fill_disk",
    "hosts",
    "left_on",
    "processes",
    "said_lines",
    "set_link",
    "shape_link",
    "unshape_link",
    "why_not",
]

_STARTS_S = 30.0
_SSHD = re.compile(r"\S*\bsshd\b")


def set_link(hosts: Hosts, number: int, to: str) -> None:
    """Set a host's link up or down."""
    hosts.inside(number, "ip", "link", "set", "eth0", to)


def shape_link(hosts: Hosts, number: int, rate: str) -> None:
    """Limit a host's link to a bandwidth each way, such as 100mbit."""
    _queue(hosts, number, "replace", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms")


def unshape_link(hosts: Hosts, number: int) -> None:
    """Undo `shape_link`."""
    _queue(hosts, number, "del")


def _queue(hosts: Hosts, number: int, verb: str, *words: str) -> None:
    for network, device in ((number, "eth0"), ("ask", f"port{number}")):
        command = ["tc", "qdisc", verb, "dev", device, "root", *words]
        subprocess.run(["ip", "netns", "exec", hosts.named(network), *command], check=True)


def fill_disk(hosts: Hosts, number: int) -> Path:
    """Fill the disk for the results of a host; returns the file to delete."""
    filler = hosts.results(number) / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(2**20)):
            pass
    return filler


def processes(hosts: Hosts, number: int) -> Iterator[tuple[int, str]]:
    """The processes of a host, the youngest first, and their commands."""
    for process in reversed(hosts.pids(number)):
        with contextlib.suppress(OSError):
            yield int(process), Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def left_on(hosts: Hosts, number: int) -> list[str]:
    """Commands of the processes on a host, except those of its sshd."""
    return [command for _, command in processes(hosts, number) if command and not _SSHD.match(command)]


class DeadServer:
    """A host with killed sshd processes. This object keeps its disk and its name for a new sshd."""

    def __init__(self, hosts: Hosts, number: int) -> None:
        self._hosts, self._number = hosts, number
        server = hosts.servers[number]
        self._kept = {kind: os.open(f"/proc/{server.pid}/ns/{kind}", os.O_RDONLY) for kind in ("mnt", "uts")}
        found = [process for process, command in processes(hosts, number) if _SSHD.match(command)]
        subprocess.run(["kill", "-9", *map(str, found)], check=True)
        server.wait()

    def mend(self) -> None:
        """Start a new sshd."""
        hosts, number = self._hosts, self._number
        mount, name = (f"/proc/{os.getpid()}/fd/{self._kept[kind]}" for kind in ("mnt", "uts"))
        enter = ["nsenter", f"--net=/run/netns/{hosts.named(number)}", f"--mount={mount}", f"--uts={name}"]
        sshd, config = cast(list[str], hosts.servers[number].args)[-2:]
        command = [*enter, sshd, "-D", "-e", "-f", config]
        hosts.servers[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + _STARTS_S
        while ":22 " not in hosts.inside(number, "ss", "-ltn") and time.monotonic() < until:
            time.sleep(0.05)
        for descriptor in self._kept.values():
            os.close(descriptor)


def said_lines(printed: str) -> list[str]:
    """The lines of istbench in a command's standard error, without its name."""
    prefix = "istbench: "
    return [line.removeprefix(prefix) for line in re.split(r"[\r\n]+", printed) if line.startswith(prefix)]
