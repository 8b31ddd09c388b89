"""Cluster profiles: what one node of a cluster computes, holds, sends and costs. TOML, built in or a user's own."""

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from istbench.errors import UserError, unknown_name

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_READABLE = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
_BANDWIDTHS = ("bandwidth_out", "bandwidth_in", "reduce_bandwidth")
_POSITIVE = ("gflops", "memory_gib", *_BANDWIDTHS)


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
        overhead_s: fixed cost of a message on its connection, seconds.
        reduce_bandwidth: of adding what arrives in an all-reduce to what is there, bits/s, one thread.
        full_duplex: whether sending and receiving each have the bandwidth, or share `bandwidth_out`.
        price_per_hour: of a node, USD. price_date: when. price_source: whose.
    """

    name: str
    summary: str
    gflops: float
    source: str
    memory_gib: float
    bandwidth_out: float
    bandwidth_in: float
    latency_s: float
    overhead_s: float
    reduce_bandwidth: float
    full_duplex: bool
    price_per_hour: float
    price_date: str
    price_source: str

    @property
    def memory_bytes(self) -> int:
        """Memory of a node, bytes."""
        return round(self.memory_gib * 2**30)

    def with_bandwidth(self, bits_per_second: float) -> "ClusterProfile":
        """The same cluster with links of another bandwidth, both ways."""
        return dataclasses.replace(self, bandwidth_out=bits_per_second, bandwidth_in=bits_per_second)


_FIELDS: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(ClusterProfile) if f.name != "name"}


def parse_bandwidth(text: str) -> float:
    """Bits/s of a bandwidth such as `100mbit`, `2.5gbit` or `800kbit`.

    Raises:
        UserError: where it does not parse or is not above zero.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", text.lower())
    value = float(found[1]) * _UNITS.get(found[2], math.nan) if found else math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(
            f"{text!r} is not a bandwidth; write a number above 0 and one of {', '.join(_UNITS)}: 100mbit, 2.5gbit"
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
    """For `istbench list clusters`: one line about every built-in profile, by name."""
    return {name: _one_line(load_profile(name)) for name in names()}


def load_profile(name: str) -> ClusterProfile:
    """The built-in profile `name`, or the user's own where `name` ends in `.toml`.

    Raises:
        UserError: for an unknown name, with the nearest; for a file that is missing, not TOML, or has a missing,
            unknown or impossible field, with file and line.
    """
    if name.endswith(".toml"):
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(f"no cluster profile {path}; built in are {', '.join(names())}") from None
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not text; a cluster profile is TOML in UTF-8") from None
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
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        number = int(line[1]) if line else len(text.splitlines())
        raise UserError(f"{where}, line {number}: not TOML ({error}); mend that line") from None
    for key in table:
        if key not in _FIELDS:
            nearest = difflib.get_close_matches(key, _FIELDS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"fields are {', '.join(_FIELDS)}"
            raise UserError(f"{where}, line {_line(text, key)}: unknown field {key!r}; {hint}")
    missing = [field for field in _FIELDS if field not in table]
    if missing:
        last = max(1, len(text.splitlines()))
        raise UserError(f"{where}, line {last}: ends without {', '.join(map(repr, missing))}; add it")
    values = {key: _value(key, table, text, where) for key in _FIELDS}
    return ClusterProfile(name=name, **values)


def _value(key: str, table: Mapping[str, Any], text: str, where: str) -> Any:
    value, wanted = table[key], _FIELDS[key]
    place = f"{where}, line {_line(text, key)}: {key}"
    if wanted is float:
        return _number(key, value, place)
    if key == "price_date" and not isinstance(value, str) and hasattr(value, "isoformat"):
        return value.isoformat()
    if not isinstance(value, wanted):
        kind = "true or false" if wanted is bool else "text in quotes"
        raise UserError(f"{place} is {value!r}; it must be {kind}")
    return value


def _number(key: str, value: Any, place: str) -> float:
    if key in _BANDWIDTHS and isinstance(value, str):
        try:
            return parse_bandwidth(value)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{place} is {value!r}; it must be a number")
    if value < 0 or (value == 0 and key in _POSITIVE):
        raise UserError(f"{place} is {value!r}; it must {'be above 0' if key in _POSITIVE else 'not be negative'}")
    return float(value)


def _line(text: str, key: str) -> int:
    """The line that sets `key`, from 1."""
    pattern = re.compile(rf"""\s*(\[+\s*)?["']?{re.escape(key)}["']?\s*[=.\]]""")
    return next((i for i, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)


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
