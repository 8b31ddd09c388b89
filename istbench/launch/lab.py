"""The lab: nodes in network namespaces of this machine, behind links that `tc` really shapes (Linux, root).

Every node has a namespace with one interface, `eth0`, linked to a bridge in a namespace of its own, so that the
machine's own network sees nothing of it. Token buckets shape both ends of every link. Where nodes outnumber cores,
each node is held to its share of a core, and compute and links are dilated by the same factor (Gupta et al.,
"To infinity and beyond: time-warped network emulation", NSDI 2006): clocks are divided by it.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from istbench.cluster.profile import bandwidth_text
from istbench.config.lab import Lab as LabRecord
from istbench.errors import UserError
from istbench.launch import control_groups
from istbench.machine import cores

_PREFIX = "istbench-lab-"
_HUB = f"{_PREFIX}hub"
_SUBNET = "10.77.0"
MOST_NODES = 250
_LOCK = Path("/run/istbench-lab.lock")
_LOCK_S = 15.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <sched.h>
_QUEUE_MS = 100
# Of the cores, where nodes share them: the rest is for the kernel, which carries every node's packets.
_NODES_SHARE = 0.8
# A bucket must hold a segment as large as the kernel hands it over (64 KiB and its headers); what is more than
# that, an idle link sends for nothing.
_LEAST_BURST, _LARGEST_BURST, _BURST_S = 72_000, 256_000, 1e-3


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A place for n nodes.

    Attributes:
        bandwidth: of every link, each way, bits/s. latency_s: added one way between two nodes, seconds.
    """

    nodes: int
    bandwidth: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not 2 <= self.nodes <= MOST_NODES:
            raise UserError(f"a lab has 2 to {MOST_NODES} nodes, not {self.nodes}; use --nodes")
        if self.latency_s < 0:
            raise UserError(f"latency must not be negative, not {self.latency_s:g} s")

    @property
    def dilation(self) -> float:
        """How many times slower than asked everything runs; 1 where every node has a core."""
        crowd = self.nodes / cores()
        return crowd / _NODES_SHARE if crowd > 1 else 1.0

    @cached_property
    def by_netem(self) -> bool:
        """Whether the network itself adds the latency; where this kernel cannot, the fabric waits."""
        return self.latency_s > 0 and has_netem()

    def to_json(self) -> dict[str, Any]:
        """What runs record of the lab, and what their workers need to know of it."""
        by = "netem" if self.by_netem else "waiting in the fabric"
        latency = f", {self.latency_s * 1e3:g} ms one way by {by}" if self.latency_s else ""
        return {
            "summary": f"links shaped to {bandwidth_text(self.bandwidth)}{latency}",
            "bandwidth": self.bandwidth,
            "latency_s": self.latency_s,
            "fabric_latency_s": 0.0 if self.by_netem else self.latency_s * self.dilation,
            "dilation": self.dilation,
        }

    @property
    def record(self) -> LabRecord:
        """What runs record of the lab."""
        return LabRecord(**self.to_json())

    @property
    def address(self) -> str:
        """Of the hub, where the launching process listens."""
        return f"{_SUBNET}.254"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """The calling thread is in the hub's namespace inside."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter_namespace(_HUB)
            yield
        finally:
            _set_namespace(home)
            os.close(home)

    def enter(self, rank: int) -> None:
        """Move the calling process to node `rank`'s namespace and share of a core."""
        _enter_namespace(_name(rank))
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        if self.dilation > 1:
            control_groups.join(_name(rank))

    @contextlib.contextmanager
    def built(self) -> Iterator[None]:
        """Have the network inside; afterwards, or when this process dies, there is nothing left of it.

        Raises:
            UserError: where this machine cannot have a lab, or another one is running.
        """
        check()
        if self.dilation > 1:
            control_groups.check()
        with _lock() as lock:
            _clean()
            reaper = _start_reaper(lock)
            try:
                _ip(self._network())
                self._shape()
                if self.dilation > 1:
                    for rank in range(self.nodes):
                        control_groups.limit(_name(rank), 1 / self.dilation)
                yield
            finally:
                assert reaper.stdin is not None
                reaper.stdin.close()
                reaper.wait()

    def _network(self) -> list[str]:
        """What `ip` is to build."""
        commands = [
            f"netns add {_HUB}",
            f"-n {_HUB} link add switch type bridge",
            f"-n {_HUB} addr add {self.address}/24 dev switch",
            f"-n {_HUB} link set switch up",
            f"-n {_HUB} link set lo up",
        ]
        for rank in range(self.nodes):
            node, port = _name(rank), f"port{rank}"
            commands += [
                f"netns add {node}",
                f"link add {port} netns {_HUB} type veth peer name eth0 netns {node}",
                f"-n {_HUB} link set {port} master switch up",
                f"-n {node} addr add {_SUBNET}.{rank + 1}/24 dev eth0",
                f"-n {node} link set eth0 up",
                f"-n {node} link set lo up",
            ]
        return commands

    def _shape(self) -> None:
        rate = self.bandwidth / self.dilation
        burst = min(_LARGEST_BURST, max(_LEAST_BURST, rate / 8 * _BURST_S))
        bucket = ["tbf", "rate", f"{rate:.0f}bit", "burst", f"{burst:.0f}", "latency", f"{_QUEUE_MS}ms"]
        for rank in range(self.nodes):
            _run(["tc", "-n", _name(rank), "qdisc", "add", "dev", "eth0", "root", "handle", "1:", *bucket])
            _run(["tc", "-n", _HUB, "qdisc", "add", "dev", f"port{rank}", "root", *bucket])
            if self.by_netem:
                delay = f"{self.latency_s * self.dilation * 1e6:.0f}us"
                netem = ["parent", "1:", "netem", "delay", delay, "limit", "100000"]
                _run(["tc", "-n", _name(rank), "qdisc", "add", "dev", "eth0", *netem])


def check() -> None:
    """Whether this machine can have a lab.

    Raises:
        UserError: saying what is missing.
    """
    if not hasattr(os, "geteuid") or not Path("/proc/self/ns/net").exists():
        raise UserError("a lab needs Linux with network namespaces; `istbench replay` works everywhere")
    if os.geteuid() != 0:
        raise UserError("a lab needs root, for network namespaces; use sudo, or `istbench replay`, which does not")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise UserError(f"a lab needs `{program}`; install iproute2")


def has_netem() -> bool:
    """Whether this kernel can delay packets; call where `check` passes."""
    name = f"{_PREFIX}probe"
    try:
        _ip([f"netns add {name}"])
        _run(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except UserError:
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return True


def _name(rank: int) -> str:
    return f"{_PREFIX}{rank}"


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter_namespace(name: str) -> None:
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _set_namespace(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _lock() -> Iterator[IO[str]]:
    """One lab at a time; a lab that has just ended, however it did, holds on until it is taken down."""
    with _LOCK.open("w") as lock:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError("another lab is running on this machine; wait for it to end") from None
                time.sleep(0.1)
        yield lock


# Waits for the end of its standard input, which comes when the lab's process ends in whatever way.
_REAP = f"""
cat > /dev/null
for namespace in $(ip netns list | grep -o '^{_PREFIX}[a-z0-9]*'); do
    ip netns pids $namespace | xargs -r kill -9
    ip netns del $namespace
done
for group in {control_groups.GROUPS}/{_PREFIX}*; do
    [ -d $group ] || continue
    for attempt in 1 2 3 4 5 6 7 8 9 10; do rmdir $group && break; sleep 0.1; done
done
"""


def _start_reaper(lock: IO[str]) -> "subprocess.Popen[bytes]":
    """A process that takes the lab down when this one closes its pipe or dies, and holds `lock` until it has."""
    return subprocess.Popen(
        ["sh", "-c", _REAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )


def _clean() -> None:
    """Take down what is left of a lab whose reaper was killed too."""
    subprocess.run(["sh", "-c", _REAP], stdin=subprocess.DEVNULL, capture_output=True)


def _ip(commands: list[str]) -> None:
    for command in commands:
        _run(["ip", *command.split()])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise UserError(f"this machine cannot have a lab: `{' '.join(command)}` failed: {said[0]}")
