"""Cluster profiles: speed, memory, links and price of the nodes of a cluster, in TOML files."""

import dataclasses
import datetime
import math
import re
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from istbench.door import convert, parse_toml, read_text, toml_lines
from istbench.errors import UserError, shown, unknown_name

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_READABLE = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
_FASTEST = 1e15

Positive = Annotated[float, Meta(gt=0, le=1e12)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Cores = Annotated[float, Meta(ge=0.01, le=1e6)]
CpuSeconds = Annotated[float, Meta(ge=0, le=10)]
BitsPerSecond = Annotated[float, Meta(gt=0, le=_FASTEST)]


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """A cluster of equal nodes on a switch that is no bottleneck.

    Attributes:
        name: as given on the command line.
        summary: one line, for listings.
        gflops: effective fp32 GFLOP/s of a node in matrix products of training.
        memory_gb_per_s: effective GB/s of a node's memory, read and written in order; on a GPU, of the GPU's.
            gather_gb_per_s: of rows of some hundred bytes in random order, by a processor. None if unknown.
        source: the origin of `gflops`, of the memory's and the network's figures, or the word estimate.
        memory_gib: memory of a node for a model, GiB; on a GPU, the GPU's.
        bandwidth_out, bandwidth_in: effective bandwidth of a node's link, bits/s.
        latency_s: from one node to another, seconds one way.
        overhead_s: to prepare a message, seconds. A connection prepares one message at a time, while others flow.
        full_duplex: sending and receiving each have their bandwidth; otherwise they share `bandwidth_out`.
        burst_bytes: bytes that an idle link carries at once, as a token bucket.
        cores: cores that compute. Messages and updates of served parameters take time from them. None if a
            GPU computes, or where this time does not count.
        cpu_s_per_byte, cpu_s_per_message: seconds of one core to send or to receive.
        price_per_hour: of a node, USD. price_date: its date. price_source: its origin.
    """

    name: str
    summary: str
    gflops: Positive
    source: str
    memory_gib: Positive
    bandwidth_out: BitsPerSecond
    bandwidth_in: BitsPerSecond
    latency_s: NotNegative
    overhead_s: NotNegative
    full_duplex: bool
    price_per_hour: NotNegative
    price_date: str
    price_source: str
    burst_bytes: NotNegative = 0.0
    memory_gb_per_s: Positive | None = None
    gather_gb_per_s: Positive | None = None
    cores: Cores | None = None
    cpu_s_per_byte: CpuSeconds = 0.0
    cpu_s_per_message: CpuSeconds = 0.0

    def with_bandwidth(self, bits_per_second: float) -> "ClusterProfile":
        """The same cluster with another bandwidth of links, in both directions."""
        return dataclasses.replace(self, bandwidth_out=bits_per_second, bandwidth_in=bits_per_second)


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
        with suppress(UserError):
            value = parse_bandwidth(value) if isinstance(value, str) else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _FASTEST:
            raise ValueError(f"must be bits/s above 0 and at most {_FASTEST:g}, or text such as '100mbit'")
        return cls(value)


class _Date(str):
    """A date in a file, as text or as TOML writes one."""

    @classmethod
    def decode(cls, value: Any) -> "_Date":
        if isinstance(value, datetime.date):
            return cls(value.isoformat())
        if not isinstance(value, str):
            raise ValueError("must be a date, such as 2024-12-01")
        return cls(value)


def _in_a_file(name: str, kind: Any) -> Any:
    if kind is BitsPerSecond:
        return _Bandwidth
    return _Date if name == "price_date" else kind


def _fields_in_a_file() -> Iterator[tuple[str, Any, Any]]:
    kinds = typing.get_type_hints(ClusterProfile, include_extras=True)
    for field in dataclasses.fields(ClusterProfile):
        if field.name != "name":
            required = field.default is dataclasses.MISSING
            default = msgspec.NODEFAULT if required else field.default
            yield field.name, _in_a_file(field.name, kinds[field.name]), default


_ProfileTable = msgspec.defstruct(
    "profile",
    _fields_in_a_file(),
    kw_only=True,
    frozen=True,
    forbid_unknown_fields=True,
)


def parse_bandwidth(text: str) -> float:
    """Bits/s of a bandwidth such as `100mbit`, `2.5gbit` or `800kbit`.

    Raises:
        UserError: if it does not parse, is not above zero, or is faster than any link.
    """
    found = re.fullmatch(r"\s*\+?(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})\s*([a-z]+)\s*", text.lower(), re.ASCII)
    value = float(found[1]) * _UNITS.get(found[2], math.nan) if found else math.nan
    if not 0 < value <= _FASTEST:
        raise UserError(
            f"{shown(text)} is not a bandwidth; write a number above 0 and one of {', '.join(_UNITS)}: "
            f"100mbit, 2.5gbit; at most {_FASTEST / 1e12:g}tbit"
        )
    return value


def bandwidth_text(bits_per_second: float, digits: int = 6) -> str:
    """A bandwidth for readers, with `digits` significant digits: `100 Mbit/s`, `2.375 Gbit/s`."""
    rounded = float(f"{bits_per_second:.{digits}g}")
    scale, unit = next((pair for pair in _READABLE if rounded >= pair[0]), (1.0, "bit/s"))
    return f"{rounded / scale:.{digits}g} {unit}"


def names() -> list[str]:
    """Names of the built-in profiles, sorted."""
    return sorted(_builtin())


def summaries() -> dict[str, str]:
    """One line about every built-in profile, by name, for `istbench list clusters`."""
    return {name: _one_line(load_profile(name)) for name in names()}


def load_profile(name: str) -> ClusterProfile:
    """The built-in profile `name`, or the profile in a file if `name` ends in `.toml`.

    Raises:
        UserError: for an unknown name, with the nearest known one; for a file that is missing, not TOML, or has a
            missing, unknown or impossible field, with file and line.
    """
    if name.endswith(".toml"):
        path = Path(name)
        text = read_text(path, f"a cluster profile; built in are {', '.join(names())}")
        return parse_profile(text, name=path.stem, where=str(path))
    builtin = _builtin()
    if name not in builtin:
        raise unknown_name("cluster", name, builtin)
    return parse_profile(builtin[name], name=name, where=f"{name}.toml")


def select_clusters(names: Sequence[str], bandwidths: Sequence[float] = ()) -> dict[str, list[ClusterProfile]]:
    """The profiles of the clusters `names` (built in, or FILE.toml), by name, in order of bandwidth.

    bandwidths: of the links, bits/s. Each gives a profile named after it (`m5.2xlarge at 100 Mbit/s`). Without
    bandwidths, a cluster has one profile with its own links.

    Raises:
        UserError: as `load_profile` does, and for two files with the same name.
    """
    loaded = [load_profile(name) for name in dict.fromkeys(names)]
    for profile in loaded:
        if sum(other.name == profile.name for other in loaded) > 1:
            raise UserError(f"two clusters are called {profile.name!r}; give one of the files another name")
    rising = sorted(set(bandwidths))
    return {profile.name: [_with_links(profile, bits) for bits in rising] or [profile] for profile in loaded}


def _with_links(profile: ClusterProfile, bits_per_second: float) -> ClusterProfile:
    name = f"{profile.name} at {bandwidth_text(bits_per_second)}"
    return dataclasses.replace(profile.with_bandwidth(bits_per_second), name=name)


def parse_profile(text: str, *, name: str, where: str) -> ClusterProfile:
    """The profile in TOML `text`; `where` names its file in errors.

    Raises:
        UserError: as `load_profile` does.
    """
    table = convert(parse_toml(text, where), _ProfileTable, toml_lines(text, where))
    values = msgspec.structs.asdict(table)
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, _Bandwidth)}
    return ClusterProfile(name=name, **{**values, **numbers, "price_date": str(values["price_date"])})


def _builtin() -> dict[str, str]:
    folder = files("istbench.cluster") / "profiles"
    return {
        entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }


def _one_line(profile: ClusterProfile) -> str:
    price = f"${profile.price_per_hour:g}/h" if profile.price_per_hour else "no rent"
    memory = "" if profile.memory_gb_per_s is None else f"{profile.memory_gb_per_s:g} GB/s of memory, "
    return (
        f"{profile.summary} ({profile.gflops:g} GFLOP/s, {memory}{profile.bandwidth_out / 1e9:g} Gbit/s, {price})"
    )
