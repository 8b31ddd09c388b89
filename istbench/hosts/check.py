"""Whether hosts can train together, from what each says of itself: a line for each that cannot."""

from collections.abc import Mapping, Sequence

import msgspec

from istbench.config.numbers import Count, Natural

LEAST_FREE = 100 * 2**20
MOST_CLOCK_S = 30.0
_ALL_PORTS = "have the firewall let the hosts reach one another at all ports"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is and has.

    Attributes:
        host: its own name. machine: what tells it from others.
        python, istbench, torch: versions, None where there is none. executable: the Python.
        folder: where commands start. missing: of the paths that the command names.
        shared: whether its results directory is that of the host that asks.
        free, free_scratch: bytes, in the results directory and for temporary files; None where it cannot write.
        addresses: IPv4, of all its interfaces but loopback.
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


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """A host's clock: seconds ahead of that of the host that asks, give or take `within_s`."""

    ahead_s: float
    within_s: float

    def __str__(self) -> str:
        return f"{self.ahead_s:+.3f} s" if self.within_s < 0.01 else f"{self.ahead_s:+.2f} ± {self.within_s:.2f} s"


def clock_of(readings: Sequence[tuple[float, float, float]]) -> Clock:
    """The clock of a host asked several times: the time here before, there, and here after; seconds."""
    before, there, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return Clock(ahead_s=there - (before + after) / 2, within_s=(after - before) / 2)


def problems(
    facts: Mapping[str, Facts], clocks: Mapping[str, Clock], versions: Mapping[str, str], out: str
) -> list[str]:
    """What is wrong with hosts, by the name they were asked by; each line names one, and the way out.

    `versions` are those of the host that asks; `out` is the results directory, on the first host.
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


def _same_machine(facts: Mapping[str, Facts]) -> list[str]:
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


def _of_versions(host: Facts, versions: Mapping[str, str]) -> list[str]:
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


def _of_clock(clock: Clock | None) -> list[str]:
    if clock is None or abs(clock.ahead_s) - clock.within_s <= MOST_CLOCK_S:
        return []
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    return [f"its clock is {_duration(abs(clock.ahead_s))} {way} this host's; set it, by NTP for instance"]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _of_space(host: Facts, out: str | None) -> list[str]:
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
    """The first of the first host's `candidates` that all others reach; None where there is none.

    `reached`: of every other host, of every candidate, its own address on the way there and why not.
    """
    for number, candidate in enumerate(candidates):
        if all(not of_host[number][1] for of_host in reached.values()):
            return candidate
    return None


def unreachable(
    first: str, candidates: Sequence[str], port: int, reached: Mapping[str, Sequence[Sequence[str]]]
) -> list[str]:
    """A line for each host that does not reach the first one, or one for all where no address suits all."""
    found = []
    for name, tried in reached.items():
        if all(why for _, why in tried):
            at = ", nor ".join(f"{at}, port {port} ({why})" for at, (_, why) in zip(candidates, tried, strict=True))
            found.append(f"{name}: does not reach {first} at {at or 'any address'}; {_ALL_PORTS}")
    none = f"{first}: none of its addresses ({', '.join(candidates)}) is one that all others reach; {_ALL_PORTS}"
    return found or [none]


def unreached_pairs(
    names: Sequence[str], tried: Mapping[str, Mapping[str, Sequence[str]]], places: Mapping[str, Sequence[object]]
) -> list[str]:
    """A line for each host and other one that it does not reach."""
    found = []
    for name in names:
        for other, (_, why) in tried.get(name, {}).items():
            if why:
                address, port = places[other]
                found.append(f"{name}: does not reach {other} at {address}, port {port} ({why}); {_ALL_PORTS}")
    return found
