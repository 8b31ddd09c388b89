"""The lab: nodes in network namespaces of this machine, behind links that `tc` really shapes (Linux, root).

Every node has a namespace with one interface, `eth0`, linked to a bridge in a namespace of its own, so that the
machine's own network sees nothing of it. Token buckets shape both ends of every link. Every node has cores of its
own, as machines have: where all shared all, what one node carried slowed down what another computed. Its threads
hand them over at once, as a machine with a core to spare has one for a thread that carries. Where nodes outnumber
cores, each is held to its share of a core, and compute and links are dilated by the same factor (Gupta et al., "To
infinity and beyond: time-warped network emulation", NSDI 2006): clocks are divided by it.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from istbench.cluster.profile import bandwidth_text
from istbench.config.run import Lab
from istbench.errors import UserError
from istbench.lab import control_groups, namespaces
from istbench.lab.time_slices import hand_cores_over_soon
from istbench.machine import cores, keep_to_share

_HUB = f"{namespaces.PREFIX}hub"
_SUBNET = "10.77.0"
MOST_NODES = 250
_QUEUE_MS = 100
# Share of the cores for nodes, where they share them: the rest is for the kernel, which carries all packets.
_NODES_SHARE = 0.8
# A bucket must hold a segment as large as the kernel hands it over (64 KiB and its headers), and what comes by
# while a busy machine is late to look; what an idle link has in it goes at once, which replays count.
_LEAST_BURST, _BURST_S = 256_000, 2e-3
# Parameters under /proc/sys/net/ipv4. BBR, which some systems use by default, all but stops for 200 ms every ten
# seconds to measure, and CUBIC leaves slow start too early where data goes both ways. Evaluations are long pauses,
# off the clock, after which the next exchange is not to start slowly.
_TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
# What a socket may have waiting in its node's own queue. Acknowledgements wait behind it: a network card's queue is
# short for that reason, and with 4 MB in it one of two directions at 100 Mbit/s took 196 ms for what takes 152.
_LEAST_UNSENT = 262_144


@dataclass(frozen=True, kw_only=True)
class ShapedNetwork:
    """A place for n nodes: one network namespace each, links between them as slow as asked.

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

    @cached_property
    def lab(self) -> Lab:
        """What runs record of it. Workers get the launching process's, which their share of a core leaves alone."""
        crowd = self.nodes / cores()
        dilation = crowd / _NODES_SHARE if crowd > 1 else 1.0
        by = "netem" if self._by_netem else "waiting in the fabric"
        latency = f", {self.latency_s * 1e3:g} ms one way by {by}" if self.latency_s else ""
        return Lab(
            summary=f"links shaped to {bandwidth_text(self.bandwidth)}{latency}",
            bandwidth=self.bandwidth,
            burst_bytes=max(_LEAST_BURST, round(self.bandwidth / dilation / 8 * _BURST_S)),
            latency_s=self.latency_s,
            fabric_latency_s=0.0 if self._by_netem else self.latency_s * dilation,
            dilation=dilation,
        )

    @cached_property
    def _by_netem(self) -> bool:
        """Whether the network itself adds the latency; where this kernel cannot, the fabric waits."""
        return self.latency_s > 0 and has_netem()

    @property
    def address(self) -> str:
        """Address of the hub, where the launching process listens."""
        return f"{_SUBNET}.254"

    def listening(self) -> AbstractContextManager[None]:
        """Have the calling thread in the hub's namespace inside."""
        return namespaces.inside(_HUB)

    def enter(self, rank: int) -> None:
        """Move the calling process to node `rank`'s namespace, and to its cores or share of one."""
        namespaces.enter(_name(rank))
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        if self.lab.dilation > 1:
            control_groups.join(_name(rank))
        else:
            keep_to_share(rank, self.nodes)
            hand_cores_over_soon()

    @contextlib.contextmanager
    def built(self) -> Iterator[None]:
        """Have the network inside; afterwards, or when this process dies, there is nothing left of it.

        Raises:
            UserError: where this machine cannot have a lab, or another one is running.
        """
        check()
        if self.lab.dilation > 1:
            control_groups.check()
        with namespaces.alone():
            namespaces.ip(self._network())
            for rank in range(self.nodes):
                for name, value in self._tcp().items():
                    namespaces.set_parameter(_name(rank), f"net/ipv4/{name}", value)
            self._shape()
            if self.lab.dilation > 1:
                for rank in range(self.nodes):
                    control_groups.limit(_name(rank), 1 / self.lab.dilation)
            yield

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

    def _tcp(self) -> dict[str, str]:
        # No less than a bucket holds, or it runs dry where the machine is late to refill the queue.
        return {**_TCP, "tcp_limit_output_bytes": str(max(_LEAST_UNSENT, self.lab.burst_bytes))}

    def _shape(self) -> None:
        rate, burst = self.bandwidth / self.lab.dilation, self.lab.burst_bytes
        bucket = ["tbf", "rate", f"{rate:.0f}bit", "burst", f"{burst:.0f}", "latency", f"{_QUEUE_MS}ms"]
        add = ["qdisc", "add", "dev"]
        for rank in range(self.nodes):
            namespaces.run(["tc", "-n", _name(rank), *add, "eth0", "root", "handle", "1:", *bucket])
            namespaces.run(["tc", "-n", _HUB, *add, f"port{rank}", "root", *bucket])
            if self._by_netem:
                delay = f"{self.latency_s * self.lab.dilation * 1e6:.0f}us"
                netem = ["parent", "1:", "netem", "delay", delay, "limit", "100000"]
                namespaces.run(["tc", "-n", _name(rank), *add, "eth0", *netem])


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
    name = f"{namespaces.PREFIX}probe"
    try:
        namespaces.ip([f"netns add {name}"])
        namespaces.run(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except UserError:
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return True


def _name(rank: int) -> str:
    return f"{namespaces.PREFIX}{rank}"
