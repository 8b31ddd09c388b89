"""An all-reduce of all hosts at once, with its bus bandwidth, and copies between the GPUs of each host."""

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from istbench.cluster.profile import bandwidth_text
from istbench.launch.hosts.connection import Connection, ask_each, told
from istbench.launch.hosts.group import HostGroup, Unfit
from istbench.launch.hosts.links import SLOW, HostLink
from istbench.launch.hosts.remote_programs import BusBandwidth, HostGpus

_WAITS_S = 150.0


def check_gpus(connections: Sequence[Connection], group: HostGroup) -> dict[str, int]:
    """The GPUs that torch has on each host; copies between those of a host are compared.

    Raises:
        Unfit: with a line for each host whose copies differ.
    """
    asked = [host for host in connections if group.facts[host.name].gpus]
    answers, found = ask_each(asked, "gpus", lambda _: {}, _WAITS_S)
    if found:
        raise Unfit(found)
    named = {name: told(name, answer, HostGpus) for name, answer in answers.items()}
    if broken := [f"{name}: {gpus.broken}" for name, gpus in named.items() if gpus.broken]:
        raise Unfit(broken)
    return {name: gpus.count for name, gpus in named.items()}


def measure_bus(
    connections: Sequence[Connection], group: HostGroup, gpus: Mapping[str, int], seconds: float
) -> BusBandwidth | None:
    """An all-reduce of all processes of all hosts, by NCCL if each has a GPU, else by gloo; None for one process.

    gpus: by host.

    Raises:
        Unfit: if a host fails, or has other values than the mean.
    """
    slots = [host.host.slots for host in connections]
    nodes = sum(slots)
    if nodes < 2:
        return None
    first = dict(zip((host.name for host in connections), itertools.accumulate([0, *slots]), strict=False))
    own_gpu = all(gpus.get(host.name, 0) >= host.host.slots for host in connections)
    common: dict[str, Any] = {
        "endpoint": [group.addresses[connections[0].name], group.port],
        "nodes": nodes,
        "device": "cuda" if own_gpu else "cpu",
        "seconds": seconds,
        "key": secrets.token_hex(32),
    }
    answers, found = ask_each(
        connections,
        "all_reduce",
        lambda host: {**common, "name": host.name, "rank": first[host.name], "slots": host.host.slots},
        _WAITS_S,
    )
    if found:
        raise Unfit(found)
    measured = {name: told(name, answer, list[BusBandwidth]) for name, answer in answers.items()}
    right = {name: sum(one.right for one in own) for name, own in measured.items()}
    if wrong := [host.name for host in connections if right[host.name] != host.host.slots]:
        raise Unfit([f"{name}: an all-reduce of all hosts gives other values than the mean" for name in wrong])
    return measured[connections[0].name][0]


def bus_words(bus: BusBandwidth, links: Sequence[HostLink]) -> tuple[str, str]:
    """The state of `bus`, ok or slow, and a line that compares it with the slowest of `links`."""
    rate = bandwidth_text(bus.bits_per_s, 3)
    size = f"{bus.bytes / 2**20:g} MiB in {bus.seconds:.3g} s"
    line = f"all {bus.nodes} nodes at once by {bus.backend}: bus bandwidth {rate} ({size})"
    if not links:
        return "ok", line
    share = bus.bits_per_s / min(link.bandwidth for link in links)
    line += f", {share:.0%} of the slowest link"
    if share >= SLOW:
        return "ok", line
    return "slow", f"{line}; name this rate as --bandwidth of `istbench estimate`"
