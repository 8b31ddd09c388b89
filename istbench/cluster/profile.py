"""Cluster profiles: speed, memory, links and price of the nodes of a cluster, in TOML files."""

import dataclasses
import datetime
import functools
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from istbench.base.decode import convert, parse_toml, read_text, toml_lines
from istbench.base.errors import UserError, unknown_name
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.numbers import MOST_NODES
from istbench.base.units import FASTEST, LONGEST_S, parse_bandwidth, parse_time
from istbench.cluster.collective import Backend

if TYPE_CHECKING:
    from istbench.cluster.trace import Trace

_READABLE = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))

THIS = "this"
"""The cluster of a recorded script: machines like the one that recorded it."""

TCP_PAYLOAD = 1448 / 1514
"""Bytes of a TCP segment over those of the full Ethernet frame that carries it."""

TCP_WINDOW = 4 * 2.0**20
"""Bytes that a TCP connection of Linux has under way at most by default (the send buffer of tcp_wmem)."""

Positive = Annotated[float, Meta(gt=0, le=1e12)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Cores = Annotated[float, Meta(ge=0.01, le=1e6)]
CpuSeconds = Annotated[float, Meta(ge=0, le=10)]
BitsPerSecond = Annotated[float, Meta(gt=0, le=FASTEST)]
Latency = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Speeds = Annotated[tuple[Annotated[float, Meta(ge=1e-3, le=1e3)], ...], Meta(max_length=MOST_NODES)]


@dataclass(frozen=True, kw_only=True)
class SharedHost:
    """A machine whose link several nodes share, such as GPUs. Nodes are on hosts in order of rank.

    Attributes:
        nodes: of a host.
        bandwidth: of a node's link to the other nodes of its host, bits/s each way. latency_s: one way, seconds.
    """

    nodes: Annotated[int, Meta(ge=2, le=MOST_NODES)]
    bandwidth: BitsPerSecond
    latency_s: Latency


@dataclass(frozen=True, kw_only=True)
class Rack:
    """Hosts on one switch. Hosts are in racks in order.

    Attributes:
        hosts: of a rack. uplink: bandwidth from the rack to all others, bits/s each way.
    """

    hosts: Annotated[int, Meta(ge=1, le=MOST_NODES)]
    uplink: BitsPerSecond


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """A cluster. By default all nodes are equal, each with one link to a switch that is no bottleneck.

    Attributes:
        name: as given on the command line.
        summary: one line, for listings.
        gflops: effective fp32 GFLOP/s of a node of speed 1 in matrix products of training.
        memory_gb_per_s: effective GB/s of a node's memory, read and written in order; on a GPU, of the GPU's.
            gather_gb_per_s: of rows of some hundred bytes in random order, by a processor. core_gb_per_s: in order,
            by one core while the others rest: more than its share. None if unknown.
        source: the origin of `gflops`, of the memory's and the network's figures, or the word estimate.
        memory_gib: memory of a node for a model, GiB; on a GPU, the GPU's.
        bandwidth_out, bandwidth_in: effective bandwidth of a host's link, bits/s. Without `host`, every node is a
            host. latency_s: from one host to another, seconds one way.
        message_s: of a message beside its latency, overhead and bytes: both ends wake for it.
        window_bytes: that a connection between hosts has under way at most, until a third of them is acknowledged.
        slow_start: a connection that was idle for a while begins slowly, as Linux does it by default.
        overhead_s: to prepare a message, seconds. A connection prepares one message at a time, while others flow.
        full_duplex: sending and receiving each have their bandwidth; otherwise they share `bandwidth_out`.
        burst_bytes: bytes that an idle link or uplink carries at once, as a token bucket.
        burst_bandwidth: of a host's link for a limited time, bits/s. The simulation leaves it out; tables name it.
        cores: cores that compute. Messages and updates of served parameters take time from them. None if a
            GPU computes, or where this time does not count.
        cpu_s_per_byte, cpu_s_per_message: seconds of one core to send or to receive.
        backend: the library of its collectives; by default nccl if a GPU computes (no `cores`), else gloo.
        in_turns: with gloo, all-reduces between distant nodes are istbench's exchanges in turns
            (`cluster.in_turns`); otherwise gloo's own, as in other programs.
        price_per_hour: of a host, USD. price_date: its date. price_source: its origin, empty without a
            price.
        speeds: computing speed of each node, relative to `gflops`, in order of rank. More nodes repeat the list.
        backplane: bandwidth that all messages between hosts share, bits/s; None if it is no bottleneck.
        host: several nodes on one machine. rack: several hosts on one switch with an uplink.
        payload: share of a link's bandwidth, as its user names it, that `bandwidth_out` counts.
    """

    payload: ClassVar[float] = 1.0

    name: str
    summary: str
    gflops: Positive
    source: str
    memory_gib: Positive
    bandwidth_out: BitsPerSecond
    bandwidth_in: BitsPerSecond
    latency_s: Latency
    overhead_s: Latency
    full_duplex: bool
    price_per_hour: NotNegative
    price_date: str
    price_source: str
    message_s: Latency = 0.0
    window_bytes: Positive = TCP_WINDOW
    slow_start: bool = True
    burst_bytes: NotNegative = 0.0
    memory_gb_per_s: Positive | None = None
    gather_gb_per_s: Positive | None = None
    core_gb_per_s: Positive | None = None
    cores: Cores | None = None
    cpu_s_per_byte: CpuSeconds = 0.0
    cpu_s_per_message: CpuSeconds = 0.0
    backend: Backend | None = None
    in_turns: bool = True
    burst_bandwidth: BitsPerSecond | None = None
    speeds: Speeds = ()
    backplane: BitsPerSecond | None = None
    host: SharedHost | None = None
    rack: Rack | None = None

    @property
    def priced(self) -> bool:
        """Whether its price is known; it may be nothing."""
        return bool(self.price_source)

    @property
    def collectives(self) -> Backend:
        """The library of its collectives."""
        return self.backend or ("nccl" if self.cores is None else "gloo")

    @property
    def uniform(self) -> bool:
        """Whether all nodes are equal, each with one link of its own to a switch that is no bottleneck."""
        shared = self.host or self.narrow_rack or self.backplane
        return not shared and len(set(self.speeds)) < 2

    @property
    def narrow_rack(self) -> Rack | None:
        """The rack, unless its uplink carries all that its hosts can send or receive."""
        if self.rack is None:
            return None
        most = max(self.bandwidth_out, self.bandwidth_in if self.full_duplex else 0.0)
        return self.rack if self.rack.uplink < self.rack.hosts * most else None

    @property
    def memory_bytes(self) -> int:
        """Memory of a node for a model, bytes."""
        return int(self.memory_gib * 2**30)

    @property
    def host_nodes(self) -> int:
        return 1 if self.host is None else self.host.nodes

    def speeds_of(self, nodes: int) -> tuple[float, ...]:
        """Computing speed of each of `nodes` nodes, relative to `gflops`."""
        speeds = self.speeds or (1.0,)
        return tuple(speeds[rank % len(speeds)] for rank in range(nodes))

    def seen(self, trace: "Trace") -> "Trace":
        """`trace` as a replay on this cluster should see it."""
        return trace

    def with_bandwidth(self, bits_per_second: float) -> "ClusterProfile":
        """The same cluster with links of `bits_per_second`, as named, in both directions, at all times."""
        carried = bits_per_second * self.payload
        return dataclasses.replace(self, bandwidth_out=carried, bandwidth_in=carried, burst_bandwidth=None)

    def with_links(self, factor: float) -> "ClusterProfile":
        """The same cluster with `factor` times the bandwidth of all links between hosts, shared ones too."""
        return dataclasses.replace(
            self,
            bandwidth_out=self.bandwidth_out * factor,
            bandwidth_in=self.bandwidth_in * factor,
            backplane=self.backplane and self.backplane * factor,
            rack=self.rack and dataclasses.replace(self.rack, uplink=self.rack.uplink * factor),
        )


class MessageCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Measured costs of messages between two nodes.

    Attributes:
        message_s: from sending an empty message until it is received, seconds.
        next_s: until the next message can follow, where several wait, seconds.
        cpu_s_per_message, cpu_s_per_byte: seconds of one core to send or to receive.
    """

    message_s: float
    next_s: float
    cpu_s_per_message: float
    cpu_s_per_byte: float

    def __str__(self) -> str:
        return (
            f"{self.message_s * 1e6:.0f} us a message, {self.next_s * 1e6:.0f} us until the next, of a core "
            f"{self.cpu_s_per_message * 1e6:.0f} us a message and {self.cpu_s_per_byte * 1e9:.2f} ns a byte"
        )


class _Bandwidth(float):
    """A bandwidth in a file: a number of bits/s, or text such as `100mbit`."""

    @classmethod
    def decode(cls, value: Any) -> "_Bandwidth":
        return cls(_number(value, parse_bandwidth, sys.float_info.min, FASTEST, "bits/s above 0", "'100mbit'"))


class _Time(float):
    """A time in a file: a number of seconds, or text such as `20ms`."""

    @classmethod
    def decode(cls, value: Any) -> "_Time":
        return cls(_number(value, parse_time, 0.0, LONGEST_S, "seconds of at least 0", "'20ms'"))


def _number(value: Any, parse: Callable[[str], float], least: float, most: float, kind: str, example: str) -> float:
    """`value` of a file as a number.

    Raises:
        ValueError: if it is none, or out of bounds.
    """
    if isinstance(value, str):
        try:
            return parse(value)
        except UserError as error:
            raise ValueError(f"must be {kind}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"must be {kind} and at most {most:g}, or text such as {example}")
    return value


class _Date(str):
    """A date in a file, as text or as TOML writes one."""

    @classmethod
    def decode(cls, value: Any) -> "_Date":
        if isinstance(value, datetime.date):
            return cls(value.isoformat())
        if not isinstance(value, str):
            raise ValueError("must be a date, such as 2024-12-01")
        return cls(value)


def _table(name: str, described: type, shorter: Mapping[str, Any] | None = None) -> type:
    """A table of a file with the fields of the dataclass `described`.

    shorter: more fields, for a table in which no field has to be.
    """
    kinds = typing.get_type_hints(described, include_extras=True)
    fields = [
        (field.name, _in_a_file(field.name, kinds[field.name]), _default(field))
        for field in dataclasses.fields(described)
        if field.name != "name"
    ]
    if shorter is not None:
        fields = [(key, kind | msgspec.UnsetType, msgspec.UNSET) for key, kind, _ in fields]
        fields += [(key, kind | msgspec.UnsetType, msgspec.UNSET) for key, kind in shorter.items()]
    return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)


def _in_a_file(name: str, kind: Any) -> Any:
    if name == "price_date":
        return _Date
    union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    options = typing.get_args(kind) if union else (kind,)
    return functools.reduce(operator.or_, [_IN_A_FILE.get(option, option) for option in options])


def _default(field: "dataclasses.Field[Any]") -> Any:
    return msgspec.NODEFAULT if field.default is dataclasses.MISSING else field.default


_IN_A_FILE: dict[Any, Any] = {BitsPerSecond: _Bandwidth, Latency: _Time}
_LEVELS = {"host": SharedHost, "rack": Rack}
_IN_A_FILE.update({kind: _table(key, kind) for key, kind in _LEVELS.items()})
_ProfileTable = _table("profile", ClusterProfile, {"base": str, "bandwidth": _Bandwidth, "latency": _Time})


def bandwidth_text(bits_per_second: float, digits: int = 6) -> str:
    """A bandwidth for readers, with `digits` significant digits: `100 Mbit/s`, `2.375 Gbit/s`."""
    rounded = float(f"{bits_per_second:.{digits}g}")
    scale, unit = next((pair for pair in _READABLE if rounded >= pair[0]), (1.0, "bit/s"))
    return f"{rounded / scale:.{digits}g} {unit}"


def typed_bandwidth(bits_per_second: float) -> str:
    """A bandwidth as an option takes it: `100mbit`."""
    return bandwidth_text(bits_per_second).removesuffix("/s").replace(" ", "").lower()


def network_words(profile: ClusterProfile) -> list[str]:
    """The network beyond one link of each node, and unequal nodes: a phrase for each; none for a plain cluster."""
    words = []
    if profile.host is not None:
        inside = bandwidth_text(profile.host.bandwidth)
        words.append(
            f"{profile.host.nodes} nodes share the link of a host; inside it each has {inside} out and in, "
            f"{profile.host.latency_s * 1e6:g} µs to another"
        )
    if profile.rack is not None:
        uplink = bandwidth_text(profile.rack.uplink)
        hosts = "1 host has" if profile.rack.hosts == 1 else f"{profile.rack.hosts} hosts share"
        words.append(f"{hosts} an uplink of {uplink} up and down")
    if profile.backplane is not None:
        words.append(f"all messages between hosts share {bandwidth_text(profile.backplane)}")
    if profile.speeds:
        words.append(f"computing speeds {', '.join(f'{speed:g}' for speed in profile.speeds)}, repeated")
    return words


def names() -> list[str]:
    """Names of the built-in profiles, sorted."""
    return sorted(_builtin())


def summaries() -> dict[str, str]:
    """One line about every built-in profile, by name, for `istbench list clusters`."""
    return {name: _one_line(load_profile(name)) for name in names()}


def load_profile(name: str, this: ClusterProfile | None = None) -> ClusterProfile:
    """The built-in profile `name`, or the profile in a file if `name` ends in `.toml`.

    this: the profile called `this`, which is also the base of a short file; None where there is none.

    Raises:
        UserError: for an unknown name, with the nearest known one; for a file that is missing, not TOML, or has an
            unknown or impossible field, with file and line; for `this` where there is none.
    """
    if name == THIS:
        if this is None:
            raise UserError(
                f"the cluster `{THIS}` is for a file of `istbench record`: machines like the one that recorded; "
                f"name another, such as {DEFAULT_CLUSTER}"
            )
        return this
    if name.endswith(".toml"):
        path = Path(name)
        text = read_text(path, f"a cluster profile; built in are {', '.join(names())}")
        return parse_profile(text, name=path.stem, where=str(path), this=this)
    builtin = _builtin()
    if name not in builtin:
        raise unknown_name("cluster", name, builtin)
    return parse_profile(builtin[name], name=name, where=f"{name}.toml")


def select_clusters(
    names: Sequence[str],
    bandwidths: Sequence[float] = (),
    latencies: Sequence[float] = (),
    this: ClusterProfile | None = None,
) -> dict[str, list[ClusterProfile]]:
    """The profiles of the clusters `names` (built in, or FILE.toml), by name, in order of bandwidth.

    bandwidths: of the links, bits/s. Each gives a profile named after it (`m5.2xlarge at 100 Mbit/s`). Without
    bandwidths, a cluster has one profile with its own links.
    latencies: from one host to another, seconds one way. Each gives a cluster named after it (`m5.2xlarge with 30
    ms`).
    this: as in `load_profile`.

    Raises:
        UserError: as `load_profile` does, and for two files with the same name.
    """
    loaded = [load_profile(name, this) for name in dict.fromkeys(names)]
    for profile in loaded:
        if sum(other.name == profile.name for other in loaded) > 1:
            raise UserError(f"two clusters are called {profile.name!r}; give one of the files another name")
    apart = [at_latency(profile, seconds) for profile in loaded for seconds in sorted(set(latencies))] or loaded
    rising = sorted(set(bandwidths))
    return {profile.name: [at_bandwidth(profile, bits) for bits in rising] or [profile] for profile in apart}


def at_latency(profile: ClusterProfile, seconds: float) -> ClusterProfile:
    """`profile` with `seconds` of latency from host to host, one way."""
    return dataclasses.replace(profile, name=f"{profile.name} with {seconds * 1e3:g} ms", latency_s=seconds)


def at_bandwidth(profile: ClusterProfile, bits_per_second: float) -> ClusterProfile:
    """`profile` with links of another bandwidth, named after it: `m5.2xlarge at 100 Mbit/s`."""
    name = f"{profile.name} at {bandwidth_text(bits_per_second)}"
    return dataclasses.replace(profile.with_bandwidth(bits_per_second), name=name)


def parse_profile(text: str, *, name: str, where: str, this: ClusterProfile | None = None) -> ClusterProfile:
    """The profile in TOML `text`; `where` names its file in errors.

    A file with a `base`, or without a field that every profile needs, takes the rest from the base, but no price:
    from `this`, or from the default cluster without it.

    Raises:
        UserError: as `load_profile` does.
    """
    table: Any = convert(parse_toml(text, where), _ProfileTable, toml_lines(text, where))
    values = _plain(table)
    if not values:
        raise UserError(f"{where} has no field; three lines are enough, such as {_SHORTEST}")
    for key, kind in _LEVELS.items():
        if values.get(key) is not None:
            values[key] = kind(**_plain(values[key]))
    if values.get("price_per_hour") is not None and not values.get("price_source"):
        values["price_source"] = f"given in {where}"
    elif values.get("price_source") and values.get("price_per_hour") is None:
        raise UserError(
            f"{where}: price_source tells the origin of price_per_hour, which the file lacks; give both"
        )
    base = values.pop("base", None)
    link = {key: values.pop(key) for key in ("bandwidth", "latency") if key in values}
    if "bandwidth" in link:
        values = {"bandwidth_out": link["bandwidth"], "bandwidth_in": link["bandwidth"], **values}
    if "latency" in link:
        values = {"latency_s": link["latency"], **values}
    values = {**_UNKNOWN, **values, "price_date": str(values.get("price_date", ""))}
    if base is not None or not values.keys() >= _NEEDED:
        values = {**_rest(base, where, this, values), **values}
    return ClusterProfile(**{**values, "name": name})


_SHORTEST = "bandwidth = '1gbit', latency = '1ms', gflops = 100"
_UNKNOWN: dict[str, Any] = {
    "summary": "a cluster of yours", "source": "not given", "price_per_hour": 0.0, "price_source": ""
}  # fmt: skip
_NEEDED = {field.name for field in dataclasses.fields(ClusterProfile) if field.default is dataclasses.MISSING} - {
    "name"
}


def _rest(base: str | None, where: str, this: ClusterProfile | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the base of a file with the fields `given`.

    Raises:
        UserError: naming the file, if there is no such base; a base is no file.
    """
    if base is not None and base != THIS and base not in _builtin():
        raise UserError(f"{where}: {unknown_name('base', base, [THIS, *names()])}")
    chosen = base or (DEFAULT_CLUSTER if this is None else THIS)
    found = vars(load_profile(chosen, this)).copy()
    if "bandwidth_out" in given:
        del found["burst_bandwidth"]
    return found


def _plain(table: Any) -> dict[str, Any]:
    values = msgspec.structs.asdict(table)
    return {
        key: float(value) if isinstance(value, _Bandwidth | _Time) else value
        for key, value in values.items()
        if value is not msgspec.UNSET
    }


@functools.cache
def _builtin() -> dict[str, str]:
    folder = files("istbench.cluster") / "profiles"
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }


def _one_line(profile: ClusterProfile) -> str:
    price = f"${profile.price_per_hour:g}/h" if profile.price_per_hour else "no rent"
    price += " a host" if profile.host is not None else ""
    memory = "" if profile.memory_gb_per_s is None else f"{profile.memory_gb_per_s:g} GB/s of memory, "
    figures = f"{profile.gflops:g} GFLOP/s, {memory}{profile.bandwidth_out / 1e9:g} Gbit/s, {price}"
    return f"{profile.summary} ({'; '.join([figures, *network_words(profile)])})"
