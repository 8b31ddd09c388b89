"""The lab: nodes in network namespaces of this machine, with links that `tc` shapes (Linux, root).

Every host has a namespace with one interface, `eth0`; by default a host is one node. A bridge in another namespace
connects them, apart from the machine's own network. Token buckets shape both ends of every link. Several nodes of a
host share its namespace: messages between them take the loopback interface, which has a token bucket too. With
racks, each rack has a bridge of its own, and a shaped link from there to the common bridge: its uplink. Latency
delays packets between hosts, by netem or `late_frames`.

Every node has cores of its own, as machines have: on shared cores, the communication of one node slowed down the
computation of another. Short time slices let a node's communication threads start at once, as on a machine with a
spare core. If there are more nodes than cores, each node gets a share of a core. Then computation and links are
dilated by the same factor, and clocks are divided by it (Gupta et al., "To infinity and beyond: time-warped network
emulation", NSDI 2006).
"""

import contextlib
import ctypes
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from istbench.base.errors import UserError
from istbench.base.machine import cores, keep_to_share
from istbench.base.options.run import Lab, LabHosts, Uplink
from istbench.cluster.profile import bandwidth_text
from istbench.launch.lab import control_groups, late_frames, namespaces
from istbench.launch.processes.place import Place

_HUB = f"{namespaces.PREFIX}hub"
_SUBNET, _HUB_NUMBER = "10.77.0", 254
MOST_NODES = 250
_QUEUE_MS = 100
# The nodes' part of the cores if they share them. The kernel forwards all packets on the rest.
_NODES_SHARE = 0.8
# A process that holds frames takes .2 of a core for a link of 1 Gbit/s.
_NODES_SHARE_BESIDE_FRAMES = 0.6
# A bucket must hold the largest segment of the kernel (64 KiB and headers), and the bytes that arrive while a busy
# machine polls late. An idle link sends a full bucket at once; replays count that.
_LEAST_BURST, _BURST_S = 256_000, 2e-3
# Bandwidth inside a host over that of its link, by default. Loopback carries 27 Gbit/s in all on two cores here.
_FASTER_INSIDE = 10
# Parameters under /proc/sys/net/ipv4. BBR, the default of some systems, almost stops for 200 ms every ten seconds
# to measure. CUBIC leaves slow start too early if data flows both ways. Evaluations are long pauses off the clock;
# the next exchange must not start slowly.
_TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
# Bytes of one socket in its node's send queue. Acknowledgements wait behind them, as in a network card's queue: it
# is short for that reason. With 4 MB in it, one of two directions at 100 Mbit/s took 196 ms in place of 152 ms.
_LEAST_UNSENT = 262_144
_MOST_UNSENT = 2**31 - 1  # of the kernel
# System calls: sched_setattr(2) and sched_getattr(2).
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (None, None))
# `struct sched_attr` of both: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("IIQiIQQQ")
_POLICY, _RUNTIME = 1, 5
_SHORTEST_SLICE_NS = 100_000


@dataclass(frozen=True, kw_only=True)
class ShapedNetwork(Place):
    """A place for n nodes: a network namespace for each host, with shaped links between them.

    Attributes:
        bandwidth: of every host's link, each way, in bit/s. latency_s: added one way between two hosts, in seconds.
        host_nodes: nodes of a host, in order of rank. inside: bandwidth of each to the others of its host, if all
            send at once, in bit/s; by default ten times `bandwidth`. One that sends alone gets all of theirs.
        racks: number of switches, each with as many hosts, the last perhaps with fewer. uplink: bandwidth of a
            rack's link to the others, each way, in bit/s; None with one rack.
        recorded_steps: local steps that traces have at least; 0 for a sample of them.
        speeds: computing speed of each node, over that of the others; by default they are equal. A slow node gets
            a share of its cores.
        share: of a core, which limits each node as on slower machines; links keep their full speed, and no clock is
            divided.
    """

    nodes: int
    bandwidth: float
    latency_s: float = 0.0
    host_nodes: int = 1
    inside: float | None = None
    racks: int = 1
    uplink: float | None = None
    recorded_steps: int = 0
    speeds: tuple[float, ...] = ()
    share: float | None = None
    address: str = field(default=f"{_SUBNET}.{_HUB_NUMBER}", init=False)  # of the hub, where the launcher listens

    def __post_init__(self) -> None:
        if not 2 <= self.nodes <= MOST_NODES:
            raise UserError(f"a lab has 2 to {MOST_NODES} nodes, not {self.nodes}; use --nodes")
        if self.latency_s < 0:
            raise UserError(f"latency must not be negative, not {self.latency_s:g} s")
        if self.host_nodes < 1 or self.nodes % self.host_nodes:
            raise UserError(
                f"hosts of {self.host_nodes} nodes do not divide {self.nodes} nodes; change --host-nodes"
            )
        if self.speeds and (len(self.speeds) != self.nodes or not all(0 < own <= 1 for own in self.speeds)):
            raise UserError(
                f"a lab of {self.nodes} nodes needs as many speeds, above 0 and at most 1; use --speeds"
            )
        if self.hosts < 2:
            raise UserError(f"{self.nodes} nodes on one host have no link to shape; give fewer --host-nodes")
        if self.inside is not None and self.host_nodes == 1:
            raise UserError("--inside is the bandwidth inside a host of several nodes; give --host-nodes too")
        if (self.racks > 1) != (self.uplink is not None):
            raise UserError("racks and an uplink belong together: give lab --racks 2 --uplink 100mbit")
        if (self.racks - 1) * self._rack_hosts >= self.hosts:
            what = "nodes" if self.host_nodes == 1 else "hosts"
            raise UserError(f"{self.hosts} {what} leave one of {self.racks} racks empty; give fewer --racks")
        if self.share is not None and self.nodes > cores():
            raise UserError(f"slower nodes need a core each: use at most {cores()} nodes with --scaling")

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.nodes // self.host_nodes

    @cached_property
    def lab(self) -> Lab:
        """The record for run headers. Workers get the launcher's copy, which counts all cores."""
        crowd = self.nodes / cores()
        if self._by_process:
            dilation = max(1.0, crowd) / _NODES_SHARE_BESIDE_FRAMES
        else:
            dilation = crowd / _NODES_SHARE if crowd > 1 else 1.0
        rack_nodes = self._rack_hosts * self.host_nodes
        words = [f"links shaped to {bandwidth_text(self.bandwidth)}"]
        if self.host_nodes > 1:
            words.append(f"hosts of {self.host_nodes} nodes with {bandwidth_text(self._inside)} inside")
        if self.uplink:
            words.append(f"racks of {rack_nodes} nodes with uplinks of {bandwidth_text(self.uplink)}")
        if self.latency_s:
            by = "netem" if self._by_netem else "a process that holds frames"
            words.append(f"{self.latency_s * 1e3:g} ms one way by {by}")
        if self.speeds:
            words.append(f"speeds {', '.join(f'{own:g}' for own in self.speeds)}")
        if self.share is not None:
            words.append(f"{self.share:g} of a core a node")
        return Lab(
            summary=", ".join(words),
            bandwidth=self.bandwidth,
            burst_bytes=_burst_bytes(self.bandwidth / dilation),
            latency_s=self.latency_s,
            dilation=dilation,
            hosts=LabHosts(nodes=self.host_nodes, bandwidth=self._inside) if self.host_nodes > 1 else None,
            uplink=Uplink(nodes=rack_nodes, bandwidth=self.uplink) if self.uplink else None,
            recorded_steps=self.recorded_steps or None,
        )

    @property
    def _inside(self) -> float:
        return self.inside or _FASTER_INSIDE * self.bandwidth

    @property
    def _rack_hosts(self) -> int:
        return -(-self.hosts // self.racks)

    @cached_property
    def _by_netem(self) -> bool:
        """Whether netem adds the latency. If the kernel has no netem, a process holds the frames instead."""
        return self.latency_s > 0 and has_netem()

    @property
    def _by_process(self) -> bool:
        return self.latency_s > 0 and not self._by_netem

    @property
    def _sending(self) -> str:
        """The device by which a host sends."""
        return late_frames.DEVICE if self._by_process else "eth0"

    def listening(self) -> AbstractContextManager[None]:
        """Inside, the calling thread is in the hub's namespace."""
        return namespaces.inside(_HUB)

    def enter(self, rank: int) -> None:
        """Move the calling process to the namespace of node `rank`, and to its cores or its share of a core."""
        namespaces.enter(_name(rank // self.host_nodes))
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        if self.host_nodes > 1:
            os.environ["LOCAL_WORLD_SIZE"] = str(self.host_nodes)
        if self.core_limit(rank) is not None:
            control_groups.join(_name(rank))
        if self.lab.dilation == 1:
            keep_to_share(rank, self.nodes)
            use_short_time_slices()

    def core_limit(self, rank: int) -> float | None:
        """The cores that a control group gives to node `rank`; None without one.

        With `speeds` every node has one, because the kernel serves these groups before other processes.
        """
        if self.share is None and not self.speeds and self.lab.dilation == 1:
            return None
        own = max(1, cores() // self.nodes) * (self.speeds[rank] if self.speeds else 1.0)
        return (own if self.share is None else self.share) / self.lab.dilation

    def check(self) -> None:
        """Check that this machine supports this lab.

        Raises:
            UserError: naming the missing requirement.
        """
        check()
        if self._by_process:
            late_frames.check()
        if self.core_limit(0) is not None:
            control_groups.check()

    @contextlib.contextmanager
    def built(self) -> Iterator[None]:
        """Build the network; remove it on exit, or when this process dies.

        Raises:
            UserError: if this machine does not support this lab, or another one is running.
        """
        self.check()
        with namespaces.exclusive():
            namespaces.ip(self._network())
            for host in range(self.hosts):
                for name, value in self.parameters().items():
                    namespaces.set_parameter(_name(host), f"net/ipv4/{name}", value)
                if self._by_process:
                    # The switch sends to a node by its port, not back to where its frames come from.
                    to_port = f"fdb replace {_hardware_address(host + 1)} dev port{host} master static"
                    namespaces.run(["bridge", "-n", _HUB, *to_port.split()])
                    namespaces.run(["bridge", "-n", _HUB, "link", "set", "dev", f"in{host}", "learning", "off"])
            self._shape()
            for rank in range(self.nodes):
                if (share := self.core_limit(rank)) is not None:
                    control_groups.limit(_name(rank), share)
            ports = [(_name(host), f"in{host}") for host in range(self.hosts)]
            held_s = self.latency_s * self.lab.dilation
            with late_frames.delaying(held_s, _HUB, ports) if self._by_process else contextlib.nullcontext():
                yield

    def cut(self, host: int, cut: bool = True) -> None:
        """Take the link of `host` down, or up again. Call it while the network is built.

        Raises:
            UserError: if there is no such link any more.
        """
        namespaces.run(["ip", "-n", _HUB, "link", "set", f"port{host}", "down" if cut else "up"])
        if self._by_process:  # its frames enter the switch by another port; 0 is disabled, 3 forwards
            namespaces.run(["bridge", "-n", _HUB, "link", "set", "dev", f"in{host}", "state", "0" if cut else "3"])

    def limit(self, host: int, share: float) -> None:
        """Give the link of `host` this share of its bandwidth, each way; raises as `cut` does."""
        bucket = self._bucket(self.bandwidth * share)
        _tc(_name(host), f"change dev {self._sending} root handle 1: {bucket}")
        _tc(_HUB, f"change dev port{host} root {bucket}")

    def _network(self) -> list[str]:
        """The `ip` commands that build the network."""
        commands = [
            f"netns add {_HUB}",
            f"-n {_HUB} link add switch type bridge",
            f"-n {_HUB} link set switch address {_hardware_address(_HUB_NUMBER)}",
            f"-n {_HUB} addr add {self.address}/24 dev switch",
            f"-n {_HUB} link set switch up",
            f"-n {_HUB} link set lo up",
        ]
        size = late_frames.MTU
        for rack in range(self.racks) if self.uplink else ():
            commands += [
                f"-n {_HUB} link add rack{rack} type bridge",
                f"-n {_HUB} link set rack{rack} up",
                f"-n {_HUB} link add up{rack} mtu {size} type veth peer name down{rack} mtu {size}",
                f"-n {_HUB} link set up{rack} master rack{rack} up",
                f"-n {_HUB} link set down{rack} master switch up",
            ]
        for host in range(self.hosts):
            name, port = _name(host), f"port{host}"
            switch = f"rack{host // self._rack_hosts}" if self.uplink else "switch"
            commands += [
                f"netns add {name}",
                f"link add {port} netns {_HUB} type veth peer name eth0 netns {name}",
                f"-n {_HUB} link set {port} master {switch} up",
                f"-n {name} addr add {_SUBNET}.{host + 1}/24 dev eth0",
                f"-n {name} link set eth0 up",
                f"-n {name} link set lo up",
            ]
            if self._by_process:
                commands += self._late_device(host, switch)
        return commands

    def _late_device(self, host: int, switch: str) -> list[str]:
        """The `ip` commands after which all that `host` sends leaves by `late0`.

        What it receives still comes by `eth0`, whose hardware address both have.
        """
        name, late, own = _name(host), late_frames.DEVICE, _hardware_address(host + 1)
        others = [*(other + 1 for other in range(self.hosts) if other != host), _HUB_NUMBER]
        return [
            f"-n {name} tuntap add dev {late} mode tap",
            f"-n {name} link set {late} address {own} mtu {late_frames.MTU} txqueuelen 2000 up",
            f"-n {name} link set eth0 down",
            f"-n {name} link set eth0 address {own} mtu {late_frames.MTU} up",
            f"-n {name} route replace {_SUBNET}.0/24 dev {late} src {_SUBNET}.{host + 1}",
            f"-n {_HUB} link set port{host} mtu {late_frames.MTU}",
            f"-n {_HUB} tuntap add dev in{host} mode tap",
            f"-n {_HUB} link set in{host} mtu {late_frames.MTU} master {switch} up",
            *(
                f"-n {name} neigh replace {_SUBNET}.{number} lladdr {_hardware_address(number)} dev {late}"
                for number in others
            ),
        ]

    def parameters(self) -> dict[str, str]:
        """Values of the parameters under /proc/sys/net/ipv4 in the namespace of a host."""
        # At least a bucket, or the bucket runs dry when a busy machine refills the queue late.
        unsent = min(max(_LEAST_UNSENT, self.lab.burst_bytes), _MOST_UNSENT)
        one_way = {f"conf/{device}/rp_filter": "0" for device in ("all", "eth0")} if self._by_process else {}
        return {**_TCP, **one_way, "tcp_limit_output_bytes": str(unsent)}

    def _shape(self) -> None:
        bucket = self._bucket(self.bandwidth)
        for host in range(self.hosts):
            _tc(_name(host), f"add dev {self._sending} root handle 1: {bucket}")
            _tc(_HUB, f"add dev port{host} root {bucket}")
            if self._by_netem:
                delay_us = self.latency_s * self.lab.dilation * 1e6
                _tc(_name(host), f"add dev eth0 parent 1: netem delay {delay_us:.0f}us limit 100000")
            if self.host_nodes > 1:
                rate = self.host_nodes * self._inside
                _tc(_name(host), f"add dev lo root {self._bucket(rate, _burst_bytes(rate / self.lab.dilation))}")
        if self.uplink is not None:
            for rack in range(self.racks):
                for end in (f"up{rack}", f"down{rack}"):
                    _tc(_HUB, f"add dev {end} root {self._bucket(self.uplink)}")

    def _bucket(self, bandwidth: float, burst_bytes: int = 0) -> str:
        rate, burst = bandwidth / self.lab.dilation, burst_bytes or self.lab.burst_bytes
        return f"tbf rate {rate:.0f}bit burst {burst} latency {_QUEUE_MS}ms"


def check() -> None:
    """Check that this machine supports a lab.

    Raises:
        UserError: naming the missing requirement.
    """
    if not hasattr(os, "geteuid") or not Path("/proc/self/ns/net").exists():
        raise UserError("a lab needs Linux with network namespaces; `istbench replay` works everywhere")
    if os.geteuid() != 0:
        raise UserError("a lab needs root, for network namespaces; use sudo, or `istbench replay` without root")
    if lacking := namespaces.lacked("CAP_NET_ADMIN", "CAP_SYS_ADMIN"):
        raise UserError(
            f"a lab needs root with {' and '.join(lacking)}, for network namespaces; start a container with "
            "--privileged, or use `istbench replay`"
        )
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise UserError(f"a lab needs `{program}`; install iproute2")


def has_netem() -> bool:
    """Whether this kernel can delay packets. Call it only after `check`."""
    name = f"istbench-probe-{os.getpid()}"  # not of a lab: one that starts removes what an earlier one left
    try:
        namespaces.ip([f"netns add {name}"])
        _tc(name, "add dev lo root netem delay 1ms")
    except UserError:
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return True


def _tc(namespace: str, command: str) -> None:
    """Add or change a queue of `namespace`, raising as `namespaces.run` does."""
    namespaces.run(["tc", "-n", namespace, "qdisc", *command.split()])


def _burst_bytes(rate: float) -> int:
    """Bytes of the bucket of a link of `rate`, bit/s on this machine's clock."""
    return max(_LEAST_BURST, round(rate / 8 * _BURST_S))


def _name(number: int) -> str:
    """The namespace of a host, or the control group of a node."""
    return f"{namespaces.PREFIX}{number}"


def _hardware_address(number: int) -> str:
    """Of the node, or of the hub, whose address ends in `number`."""
    return f"02:00:00:00:00:{number:02x}"


def use_short_time_slices() -> None:
    """Set time slices of 0.1 ms for this thread and the threads that it starts (Linux 6.12 or later).

    By default Linux lets a thread keep its core for some milliseconds, up to its next timer tick. Older kernels
    ignore this call.
    """
    attributes = _attributes()
    if attributes is not None:
        attributes[_RUNTIME] = _SHORTEST_SLICE_NS
        ctypes.CDLL(None).syscall(_SET, 0, _ATTRIBUTES.pack(*attributes), 0)


def _attributes() -> list[int] | None:
    """The scheduling attributes of this thread; None if unknown, or if the runtime is not a time slice."""
    content = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if _GET is None or ctypes.CDLL(None).syscall(_GET, 0, content, _ATTRIBUTES.size, 0) != 0:
        return None
    found = list(_ATTRIBUTES.unpack(content))
    return found if found[_POLICY] in (os.SCHED_OTHER, os.SCHED_BATCH) else None
