"""A file of a cluster profile from measurements of hosts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from istbench.base.options.numbers import Amount
from istbench.cluster.profile import MessageCosts, bandwidth_text, parse_profile
from istbench.cluster.speed import Speed
from istbench.launch.hosts.links import HostLink, Rates, rates_of, shared_link
from istbench.launch.hosts.remote_programs import BusBandwidth


class MeasuredNode(Speed, frozen=True, kw_only=True):
    """Measurements of a process on a host: its speed, bytes of memory, and cores; None if it uses a GPU."""

    memory: Amount
    cores: Amount | None


def profile_toml(
    nodes: Mapping[str, Sequence[MeasuredNode]],
    slots: Mapping[str, int],
    links: Sequence[HostLink],
    together: Rates,
    carrying: MessageCosts,
    date: str,
    bus: BusBandwidth | None = None,
) -> str:
    """The file of a cluster of equal nodes, each as slow as the slowest one, for which synchronous steps wait.

    Args:
        nodes, slots: by host, measurements of its processes at once, and the number of those that share its links.
        links, together: measured alone, and while all hosts send at once. bus: of an all-reduce; a replay finds
            its seconds from the links, so that `source` alone tells it.
    """
    shared = shared_link(links, together) if len(set(slots.values())) == 1 else None
    # What a shared link explains is no property of the hosts' own links.
    counted = [*rates_of(links).items(), *(together.items() if shared is None else ())]
    out = min(rate / slots[source] for (source, _), rate in counted)
    into = min(rate / slots[target] for (_, target), rate in counted)
    latency = max(link.latency_s for link in links)
    every = [node for own in nodes.values() for node in own]
    gflops, slowest = min((node.gflops, name) for name, own in nodes.items() for node in own)
    rate, at_once = (bandwidth_text(min(rates.values()), 3) for rates in (rates_of(links), together))
    assumed = "" if shared is None else f"; assumed: {shared.words}"
    bus_rate = "" if bus is None else bandwidth_text(bus.bits_per_s, 3)
    reduced = "" if bus is None else f"bus bandwidth of an all-reduce by {bus.backend} {bus_rate}; "
    cores = [node.cores for node in every if node.cores is not None]
    values: dict[str, Any] = {
        "summary": f"{len(nodes)} hosts measured over ssh: {', '.join(nodes)}",
        "gflops": _rounded(gflops),
        "source": (
            f"measured by istbench doctor: a process of {slowest}, the slowest; the slowest of {len(links)} links, "
            f"{rate} by one TCP connection alone, {at_once} while all hosts send at once{assumed}; {reduced}"
            "a message's cost by all-reduces on the first host"
        ),
        "memory_gib": _rounded(min(node.memory for node in every) / 2**30),
        "bandwidth_out": _rounded(out),
        "bandwidth_in": _rounded(into),
        "latency_s": _rounded(latency),
        "message_s": _rounded(max(0.0, carrying.message_s - carrying.next_s)),
        "overhead_s": _rounded(carrying.next_s),
        # What links that send or receive lose by it is in the bandwidth.
        "full_duplex": True,
        "price_per_hour": 0.0,
        "price_date": date,
        "price_source": "own machines, no rent",
    }
    for name in ("memory_gb_per_s", "gather_gb_per_s", "core_gb_per_s"):
        rates = [rate for node in every if (rate := getattr(node, name)) is not None]
        if len(rates) == len(every):
            values[name] = _rounded(min(rates))
    if len(cores) == len(every):
        values["cores"] = _rounded(min(cores))
        values["cpu_s_per_byte"] = _rounded(carrying.cpu_s_per_byte)
        values["cpu_s_per_message"] = _rounded(carrying.cpu_s_per_message)
    if shared is not None and shared.rack is None:
        values["backplane"] = _rounded(shared.bandwidth)
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    if shared is not None and shared.rack is not None:
        # Processes of a host count as hosts here, each with its share of the host's link.
        hosts = shared.rack * next(iter(slots.values()))
        text += f"\n[rack]\nhosts = {hosts}\nuplink = {_rounded(shared.bandwidth)}\n"
    parse_profile(text, name="measured", where="what was measured")
    return text


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
