"""Cluster profiles: what one node of a cluster computes, holds, sends and costs. TOML, built in or a user's own."""

import dataclasses
import datetime
import math
import re
import typing
from collections.abc import Iterator
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
    """A cluster of like nodes behind a switch that is not the bottleneck.

    Attributes:
        name: as given on the command line.
        summary: one line, for listings.
        gflops: effective fp32 GFLOP/s of a node in the matrix products of training.
        source: where `gflops` and the network figures come from, or that they are an estimate.
        memory_gib: memory a node has for a model, in GiB; of the GPU where it trains on one.
        bandwidth_out, bandwidth_in: of a node's link, effective, bits/s.
        latency_s: from one node to another, seconds one way.
        overhead_s: to prepare a message, one after another on a connection, while those before it flow; seconds.
        full_duplex: whether sending and receiving each have the bandwidth, or share `bandwidth_out`.
        burst_bytes: what a link that stood idle carries at once, as a token bucket does.
        cores: those that compute, and that carrying messages and updating what a node serves take from; None where
            computing is elsewhere, on a GPU, or that is not to count.
        cpu_s_per_byte, cpu_s_per_message: of one core, to send or to receive one.
        price_per_hour: of a node, USD. price_date: when. price_source: whose.
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
    cores: Cores | None = None
    cpu_s_per_byte: CpuSeconds = 0.0
    cpu_s_per_message: CpuSeconds = 0.0

    def with_bandwidth(self, bits_per_second: float) -> "ClusterProfile":
        """The same cluster with links of another bandwidth, both ways."""
        return dataclasses.replace(self, bandwidth_out=bits_per_second, bandwidth_in=bits_per_second)


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
        UserError: where it does not parse, is not above zero, or faster than any link.
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
    """A bandwidth for readers, to so many significant digits: `100 Mbit/s`, `2.375 Gbit/s`."""
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
    """The built-in profile `name`, or the user's own where `name` ends in `.toml`.

    Raises:
        UserError: for an unknown name, with the nearest; for a file that is missing, not TOML, or has a missing,
            unknown or impossible field, with file and line.
    """
    if name.endswith(".toml"):
        path = Path(name)
        text = read_text(path, f"a cluster profile; built in are {', '.join(names())}")
        return parse_profile(text, name=path.stem, where=str(path))
    builtin = _builtin()
    if name not in builtin:
        raise unknown_name("cluster", name, builtin)
    return parse_profile(builtin[name], name=name, where=f"{name}.toml")


def parse_profile(text: str, *, name: str, where: str) -> ClusterProfile:
    """The profile that TOML `text` holds; `where` names its file in errors.

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
    return f"{profile.summary} ({profile.gflops:g} GFLOP/s, {profile.bandwidth_out / 1e9:g} Gbit/s, {price})"
