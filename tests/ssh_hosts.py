"""Hosts to run on over ssh: network namespaces of this machine, each with its own sshd, address and name."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import warm

import istbench
from istbench.base.cache import cache_directory
from istbench.launch.hosts.group import HostFacts

GOOD = HostFacts(
    host="one",
    machine="1",
    python="3.11.2",
    executable="/usr/bin/python3",
    istbench="1.2.0",
    torch="2.11.0",
    cores=8,
    gpus=0,
    folder="/home/me",
    missing=[],
    shared=False,
    free=10**12,
    free_scratch=10**12,
    addresses=["10.0.0.1"],
)
"""What a host without a fault says of itself."""

HOST_PYTHON = Path(__file__).parent / "host_python"
"""Where Pythons find `sitecustomize`, by which programs of istbench begin warm."""
WARM = False
"""Whether programs of istbench begin with torch imported on the hosts to come. Tests set it."""

_SSHD = "/usr/sbin/sshd"
_SUBNET = "10.79.0"
_STARTS_S = _ENDS_S = 60.0
_unique = itertools.count()
# What each host sees of the machine: all of it but the results directory, which is its own.
_HOST = 'mount -t tmpfs none "$1" && hostname "$2" && exec "$3" -D -e -f "$4"'
OTHER_PORT = 2222
"""Where each host's sshd listens as well."""
_CONFIG = """
Port 22
Port {other_port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
SetEnv PYTHONPATH={install} ISTBENCH_CACHE={cache} OMP_NUM_THREADS=1 {more}
"""
_CLIENT = """
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
LogLevel ERROR
{names}
"""


def why_not() -> str | None:
    """Why this machine cannot have such hosts, None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts in network namespaces need Linux and root"
    missing = [name for name in ("ip", "tc", "ssh", "ssh-keygen", _SSHD) if shutil.which(name) is None]
    if missing:
        return f"hosts in network namespaces need {', '.join(missing)}: install iproute2 and openssh-server"
    name = f"istbench-ssh-{os.getpid()}-probe"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode else None


@dataclass(frozen=True)
class Hosts:
    """Hosts that are up, and a machine beside them to ask from.

    Attributes:
        names: as ssh knows them. out: a path that is another directory on each of them, and on this machine.
        folder: of keys and such. unique: what tells these hosts from others of this process.
        servers: their sshd's, each of which sees the machine as its host does.
    """

    names: list[str]
    out: Path
    folder: Path
    unique: int
    servers: list[subprocess.Popen[bytes]]

    def command(self, *words: object) -> list[str]:
        """`istbench` with `words`."""
        return [sys.executable, "-m", "istbench", *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        """That of such a command, whose ssh asks from a network beside the hosts."""
        return {**os.environ, "PATH": self.path, "PYTHONPATH": _install(), "ISTBENCH_CACHE": str(cache_directory())}

    @property
    def path(self) -> str:
        """Where programs are found: first, the ssh that knows the hosts."""
        return f"{self.folder}:{os.environ['PATH']}"

    def inside(self, number: int, *command: str) -> str:
        """What `command` prints in the network of host `number`."""
        whole = ["ip", "netns", "exec", self.named(number), *command]
        return subprocess.run(whole, capture_output=True, text=True, check=True).stdout

    def left(self) -> list[str]:
        """Processes on the hosts, but for their sshd's."""
        found = []
        for number in range(len(self.names)):
            for process in self.pids(number):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found += [words] if words and not words.startswith((_SSHD, "sshd")) else []
        return found

    def assert_nothing_left(self) -> None:
        """Wait until nothing is left on the hosts: whoever asked does not, beyond a moment."""
        until = time.monotonic() + _ENDS_S
        while left := self.left():
            assert time.monotonic() < until, left
            time.sleep(0.05)

    def named(self, what: object) -> str:
        """The network namespace of a host, by its number, or of who asks."""
        return f"istbench-ssh-{os.getpid()}-{self.unique}-{what}"

    def pids(self, number: int) -> list[str]:
        """Processes of host `number`."""
        listed = ["ip", "netns", "pids", self.named(number)]
        return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()

    def resize(self, number: int, size: str) -> None:
        """Have the results directory of host `number` be a disk of so many bytes."""
        enter = ["nsenter", "--mount", "--target", str(self.servers[number].pid)]
        subprocess.run([*enter, "mount", "-o", f"remount,size={size}", str(self.out)], check=True)

    def results(self, number: int) -> Path:
        """The results directory as host `number` sees it, while it has its sshd."""
        return Path(f"/proc/{self.servers[number].pid}/root{self.out}")


@contextlib.contextmanager
def hosts(count: int, folder: Path, install: str = "", rack: int = 0, uplink: str = "") -> Iterator[Hosts]:
    """Have `count` hosts inside, which keep what they need in `folder`.

    `install` is where their Pythons look for packages first. Every `rack` hosts have a switch with an `uplink`, the
    words for `tc` that shape it; without racks, all have one switch.
    """
    names = [f"host{number}" for number in range(count)]
    servers: list[subprocess.Popen[bytes]] = []
    found = Hosts(names, folder / "results", folder, next(_unique), servers)
    found.out.mkdir(parents=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    entries = "\n".join(f"Host {name}\n  HostName {_address(number)}" for number, name in enumerate(names))
    (folder / "config").write_text(_CLIENT.format(folder=folder, names=entries))
    wrapper = folder / "ssh"
    ask = found.named("ask")
    beside = f"ip netns exec {ask}"
    wrapper.write_text(f'#!/bin/sh\nexec {beside} {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    try:
        _ip(f"netns add {ask}")
        _ip(f"-n {ask} link add switch type bridge")
        _ip(f"-n {ask} addr add {_SUBNET}.254/24 dev switch")
        _ip(f"-n {ask} link set switch up")
        _ip(f"-n {ask} link set lo up")
        for number in range(-(-count // rack) if rack else 0):
            _ip(f"-n {ask} link add rack{number} type bridge")
            _ip(f"-n {ask} link set rack{number} up")
            _ip(f"-n {ask} link add up{number} type veth peer name down{number}")
            _ip(f"-n {ask} link set up{number} master rack{number} up")
            _ip(f"-n {ask} link set down{number} master switch up")
            for end in ("up", "down"):
                shape = f"tc -n {ask} qdisc add dev {end}{number} root {uplink}"
                subprocess.run(shape.split(), check=True)
        for number, name in enumerate(names):
            own = found.named(number)
            _ip(f"netns add {own}")
            _ip(f"link add port{number} netns {ask} type veth peer name eth0 netns {own}")
            switch = f"rack{number // rack}" if rack else "switch"
            _ip(f"-n {ask} link set port{number} master {switch} up")
            _ip(f"-n {own} addr add {_address(number)}/24 dev eth0")
            _ip(f"-n {own} link set eth0 up")
            _ip(f"-n {own} link set lo up")
            config = folder / f"sshd{number}"
            config.write_text(_server(number, folder, install))
            words = ["sh", "-c", _HOST, "sh", found.out, name, _SSHD, config]
            command = ["ip", "netns", "exec", own, "unshare", "--uts", "--mount", *words]
            with (folder / f"sshd{number}.log").open("wb") as log:
                servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log))
        for number in range(count):
            _await_listener(found, number)
        yield found
    finally:
        for number in [*range(count), "ask"]:
            listed = subprocess.run(["ip", "netns", "pids", found.named(number)], capture_output=True, text=True)
            subprocess.run(["kill", "-9", *listed.stdout.split()], capture_output=True)
            subprocess.run(["ip", "netns", "del", found.named(number)], capture_output=True)
        for server in servers:
            server.wait()


def _server(number: int, folder: Path, install: str) -> str:
    cache, path, more = cache_directory(), f"{install}:{_install()}".strip(":"), ""
    if WARM and not install:
        path = f"{HOST_PYTHON}:{path}"
        more = f"{warm.ADDRESS}={warm.server_address()} {warm.PYTHON}={sys.executable}"
    return _CONFIG.format(
        other_port=OTHER_PORT, address=_address(number), folder=folder, install=path, cache=cache, more=more
    )


def _await_listener(found: Hosts, number: int) -> None:
    until = time.monotonic() + _STARTS_S
    while ":22 " not in found.inside(number, "ss", "-ltn"):
        assert time.monotonic() < until, (found.folder / f"sshd{number}.log").read_text()
        time.sleep(0.05)


def _install() -> str:
    return str(Path(istbench.__file__).parent.parent)


def _address(number: int) -> str:
    return f"{_SUBNET}.{number + 1}"


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
