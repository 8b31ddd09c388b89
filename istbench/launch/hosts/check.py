"""Check whether hosts can train together, from the facts that each reports; a line for each problem."""

from collections.abc import Mapping, Sequence

import msgspec

from istbench.base.options.numbers import Count, Natural

LEAST_FREE = 100 * 2**20
MOST_CLOCK_S = 30.0
_ALL_PORTS = "have the firewall let the hosts reach one another at all ports"


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a host reports.

    Attributes:
        host: its own hostname. machine: identifies the machine.
        python, istbench, torch: versions, None if absent. executable: the Python.
        folder: the directory where commands start. missing: paths of the command that do not exist there.
        shared: whether its results directory is that of the local machine.
        free, free_scratch: bytes in the results directory and for temporary files; None if not writable.
        addresses: IPv4 addresses of all interfaces but loopback.
    """

    host: str
    machine: str
    python: str
    executable: str
    istbench: str | None = None
    torch: str | None = None
    cores: Count
    gpus: Natural
    folder: str
    missing: list[str]
    shared: bool
    free: Natural | None = None
    free_scratch: Natural | None = None
    addresses: list[str]


class HostClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of a host: seconds ahead of the local clock, give or take `within_s`."""

    ahead_s: float
    within_s: float

    def __str__(self) -> str:
        return f"{self.ahead_s:+.3f} s" if self.within_s < 0.01 else f"{self.ahead_s:+.2f} ± {self.within_s:.2f} s"


def clock_of(readings: Sequence[tuple[float, float, float]]) -> HostClock:
    """The clock of a host from several readings: local time before, time there, local time after; seconds."""
    before, there, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return HostClock(ahead_s=there - (before + after) / 2, within_s=(after - before) / 2)


def problems(
    facts: Mapping[str, HostFacts], clocks: Mapping[str, HostClock], versions: Mapping[str, str], out: str
) -> list[str]:
    """The problems of hosts; each line names a host and the way out.

    Args:
        versions: of the local machine. out: the results directory, on the first host.
    """
    found = _same_machine(facts)
    for name, host in facts.items():
        own = [
            *_of_versions(host, versions),
            *(f"no {path} there (seen from {host.folder})" for path in host.missing),
            *_of_clock(clocks.get(name)),
            *_of_space(host, out if name == next(iter(facts)) else None),
        ]
        found += [f"{name}: {problem}" for problem in own]
    return found


def _same_machine(facts: Mapping[str, HostFacts]) -> list[str]:
    seen: dict[str, str] = {}
    found = []
    for name, host in facts.items():
        other = seen.setdefault(host.machine, name)
        if other != name:
            found.append(
                f"{name}: it is the same machine as {other} ({host.host}); name it once, in a file of hosts with "
                "slots=2 for two processes"
            )
    return found


def _of_versions(host: HostFacts, versions: Mapping[str, str]) -> list[str]:
    there = {"istbench": host.istbench, "torch": host.torch, "Python": host.python}
    if there["istbench"] is None:
        return [
            f"no istbench for {host.executable}; --install installs istbench {versions['istbench']} there, or name "
            "a Python that has it by --hosts-python"
        ]
    differing = [
        f"{what} {version or 'none'} ({versions[what]} here)"
        for what, version in there.items()
        if _minor(what, version) != _minor(what, versions[what])
    ]
    return (
        [f"it has {', '.join(differing)}; install the same on every host, as --install does"] if differing else []
    )


def _minor(what: str, version: str | None) -> str | None:
    """The part of a version that must be equal: a build of torch, as for CPUs, may differ from the local one."""
    if what == "Python" and version:
        return version.rpartition(".")[0]
    return version.partition("+")[0] if version else version


def _of_clock(clock: HostClock | None) -> list[str]:
    if clock is None or abs(clock.ahead_s) - clock.within_s <= MOST_CLOCK_S:
        return []
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    return [f"its clock is {_duration(abs(clock.ahead_s))} {way} this host's; set it, by NTP for instance"]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _of_space(host: HostFacts, out: str | None) -> list[str]:
    places = [(host.free_scratch, "temporary files", "free some, or set TMPDIR there")]
    if out is not None:
        places.append((host.free, out, "free some, or choose another --out"))
    found = []
    for free, what, way_out in places:
        if free is None:
            found.append(f"cannot write {what} there; {way_out}")
        elif free < LEAST_FREE:
            found.append(f"only {free / 2**20:.0f} MiB are free for {what} there; {way_out}")
    return found


def choose_address(candidates: Sequence[str], reached: Mapping[str, Sequence[Sequence[str]]]) -> str | None:
    """The first address among the `candidates` of the first host that all others reach; None if there is none.

    reached: for every other host and every candidate, its own address on the way there, and why it fails.
    """
    for number, candidate in enumerate(candidates):
        if all(not of_host[number][1] for of_host in reached.values()):
            return candidate
    return None


def unreachable(
    first: str, candidates: Sequence[str], port: int, reached: Mapping[str, Sequence[Sequence[str]]]
) -> list[str]:
    """A line for each host that does not reach the first one, or one line if no address suits all."""
    found = []
    for name, tried in reached.items():
        if all(why for _, why in tried):
            at = ", nor ".join(f"{at}, port {port} ({why})" for at, (_, why) in zip(candidates, tried, strict=True))
            found.append(f"{name}: does not reach {first} at {at or 'any address'}; {_ALL_PORTS}")
    none = f"{first}: no address of it ({', '.join(candidates)}) is reachable from all other hosts; {_ALL_PORTS}"
    return found or [none]


def unreached_pairs(
    tried: Mapping[str, Mapping[str, Sequence[str]]], places: Mapping[str, Sequence[object]]
) -> list[str]:
    """A line for each host and another one of `places` that it does not reach."""
    found = []
    for name, others in tried.items():
        for other, (_, why) in others.items():
            if why and other != name:
                address, port = places[other]
                found.append(f"{name}: does not reach {other} at {address}, port {port} ({why}); {_ALL_PORTS}")
    return found
