"""The errors of replays of each method: a summary of the measurements of `istbench lab validate`."""

import functools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Nodes
from istbench.base.options.texts import Short, Text
from istbench.base.units import parse_bandwidth

UNFINISHED = "-unfinished"
_MOST_BYTES = 2**26
_CLOSE = 0.05

_Name = Annotated[str, Meta(min_length=1, max_length=4096)]
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]
_Error = Annotated[float, Meta(ge=-1, le=1e9)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Local steps of a method, timed on shaped links and replayed.

    Attributes:
        bandwidth: of the links, as the user wrote it.
        measured_s: seconds of the steps on the shaped links. replayed_s: those of the replay.
        environment: where the nodes computed, if the trace is from elsewhere; empty if both are from one run.
    """

    workload: Text = "speech"
    method: _Name
    nodes: Nodes
    bandwidth: Short
    measured_s: _Seconds
    replayed_s: _Seconds
    environment: Text = ""

    @property
    def error(self) -> float:
        """Replayed over measured, less one."""
        return self.replayed_s / self.measured_s - 1


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one method.

    Attributes:
        slowest, fastest: the bandwidths, as the user wrote them.
        median, mean: of the errors, the median without sign. largest: the error that is furthest from zero.
        where: the bandwidth and the number of nodes of the largest error.
    """

    method: _Name
    workloads: tuple[str, ...]
    nodes: tuple[Nodes, ...]
    slowest: str
    fastest: str
    measurements: Count
    median: _Error
    mean: _Error
    largest: _Error
    where: str

    @property
    def is_off(self) -> bool:
        """Whether a replay was further off than 5 %."""
        return abs(self.largest) > _CLOSE


class LatencyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of several methods on links with a latency.

    Attributes:
        least_s, most_s: the latencies, one way. median: of the errors without sign. furthest: the largest, with its
            sign. where: its method, bandwidth and latency.
    """

    least_s: _Seconds
    most_s: _Seconds
    measurements: Count
    median: _Error
    furthest: _Error
    where: str


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """The checks that come with istbench. methods: by bandwidth, of each method. latency: on slow links."""

    methods: tuple[Check, ...]
    latency: LatencyCheck


class ReplayCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The check of one method's replays; None if nobody has checked them."""

    method: str
    check: Check | None


def checks_of(measurements: Iterable[Measurement]) -> dict[str, Check]:
    """The check of each method in `measurements`, in the order of their first. Other environments do not count."""
    by_method: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        if not measurement.environment:
            by_method[measurement.method].append(measurement)
    return {method: _check(method, own) for method, own in by_method.items()}


def _check(method: str, own: list[Measurement]) -> Check:
    bandwidths = sorted({measurement.bandwidth for measurement in own}, key=parse_bandwidth)
    errors = [measurement.error for measurement in own]
    worst = max(own, key=lambda measurement: abs(measurement.error))
    return Check(
        method=method,
        workloads=tuple(dict.fromkeys(measurement.workload for measurement in own)),
        nodes=tuple(sorted({measurement.nodes for measurement in own})),
        slowest=bandwidths[0],
        fastest=bandwidths[-1],
        measurements=len(own),
        median=statistics.median(map(abs, errors)),
        mean=statistics.fmean(errors),
        largest=worst.error,
        where=f"{worst.bandwidth} on {worst.nodes} nodes",
    )


@functools.cache
def packaged_checks() -> Checks:
    """The checks that come with istbench."""
    content = (files("istbench.cluster") / "replay_checks.json").read_bytes()
    return decode_json(content, Checks, "istbench/cluster/replay_checks.json", "install istbench again")


@functools.cache
def known_checks() -> Mapping[str, Check]:
    """The checks of methods that come with istbench, by method."""
    return {check.method: check for check in packaged_checks().methods}


def checks_in(folder: Path) -> dict[str, Check]:
    """The checks of the measurements in the JSON files of `folder`, a results directory's `validation`, by method.

    Raises:
        UserError: naming a file that does not hold measurements.
    """
    return checks_of(measurement for path in measurement_files(folder) for measurement in read_measurements(path))


def measurement_files(folder: Path) -> list[Path]:
    """The files of finished measurements in `folder`, by name; none if it is no directory."""
    return sorted(path for path in folder.glob("*.json") if not path.stem.endswith(UNFINISHED))


def read_measurements(path: Path) -> list[Measurement]:
    """The measurements in `path`.

    Raises:
        UserError: if it does not hold measurements.
    """
    content = read_bytes(path, "the measurements of `istbench lab validate`", _MOST_BYTES)
    found = decode_json(content, list[Measurement], str(path), "delete it, or run `istbench lab validate` again")
    for measurement in found:
        try:
            parse_bandwidth(measurement.bandwidth)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    return found


def replay_check(method: str, own: Mapping[str, Check]) -> ReplayCheck:
    """The check of `method`: the user's `own` if there is one, or else that of istbench."""
    return ReplayCheck(method=method, check=own.get(method) or known_checks().get(method))
