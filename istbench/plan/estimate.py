"""Steps of every method that follows from sizes, estimated from numbers. Needs no torch for known options."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from istbench.base.errors import UserError
from istbench.base.sign_change import sign_change
from istbench.base.units import FASTEST
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import ReplayCheck, replay_check
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.methods.size_plan import SizePlan
from istbench.methods.size_plans import SIZE_PLANS
from istbench.node.registry import names_of
from istbench.plan.numbers import LEAST_CARRIED, NOMINAL, Numbers, cluster_of, record_of
from istbench.plan.script_time import (
    ChosenMethod,
    alone_seconds,
    chosen_methods,
    sent_in_step,
    size_trace,
    step_seconds,
)

LEVELS = (0.5, 0.75, 0.9, 0.95)
"""Shares of a step that compute."""
CARRIED = (0.58, 1.2)
"""Of their rate, links carried this much in the measurements of others: the ends of `reproduce outside`."""
_EVENTS = 150_000
_CLOSE = 4e-3
_QUICK_NODES = 16
_CURVE_STEPS = 4  # points of a curve in a decade of bandwidth
_GRID = 500  # points of a search in a decade of bandwidth, .46 % apart
_WIDEST = 13 * _GRID  # 10 Tbit/s: more than any link of today
_SLOWEST = 3 * _GRID


@dataclass(frozen=True, kw_only=True)
class EstimateRow:
    """A step by a method.

    Attributes:
        local_steps: in a round. nodes: that train. alone_s: of a step of one node.
        step_s: of a step of all. low_s, high_s: its range. sent: bytes of the busiest node in a step.
        bandwidth_for: bits/s of a host's link at which this share computes; None if latency prevents it.
        steps_for: local steps of a round at which it does, with the bandwidth given; empty without such an option.
        check: the errors of replays of the method in a lab.
    """

    method: ChosenMethod
    local_steps: int
    nodes: int
    alone_s: float
    step_s: float
    low_s: float
    high_s: float
    sent: float
    bandwidth_for: Mapping[float, float | None]
    steps_for: Mapping[float, int]
    check: ReplayCheck

    @property
    def computing(self) -> float:
        """Share of a step that computes: its samples a second, over those without communication."""
        return self.alone_s / self.step_s

    @property
    def over_gpu(self) -> float:
        """Samples a second over those of one node."""
        return self.nodes * self.computing


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Everything that follows from `numbers`.

    Attributes:
        cluster: its links. rows: the fastest first. left_out: lines about methods without a row.
        host_samples: of one host by `ddp`, over those of one node; None for hosts of one node.
        held_by: seconds of a step of `ddp` that bytes, latency, shared links and those inside a host add.
        helps: seconds of a step by remedies for `ddp`, the fastest first. ddp_s: of a step of `ddp`.
    """

    numbers: Numbers
    record: ScriptRecord
    cluster: ClusterProfile
    rows: tuple[EstimateRow, ...]
    left_out: tuple[str, ...]
    host_samples: float | None
    held_by: Mapping[str, float]
    helps: tuple[tuple[str, float], ...]
    ddp_s: float


class _Cluster:
    """The cluster of `numbers` and the steps of methods there; each is replayed once.

    Attributes:
        profile: its links. alone_s: seconds of a step of one node. given: bits/s of the hosts' links, as named.
    """

    def __init__(self, numbers: Numbers) -> None:
        self.numbers, self.record = numbers, record_of(numbers)
        self.profile = cluster_of(numbers, self.record)
        self.alone_s = alone_seconds(self.record, self.profile)
        self.given = self.profile.bandwidth_out / self.profile.payload
        self._methods: dict[str, _Replays] = {}

    def replays(self, method: ChosenMethod, *, typed: bool = True) -> "_Replays":
        """Those of `method`.

        typed: it was named, so that it may have many messages.
        """
        if method.label not in self._methods:
            self._methods[method.label] = _Replays(self, method, typed=typed)
        return self._methods[method.label]

    def of_ddp(self) -> "_Replays":
        """Those of `ddp`, to compare with."""
        return self.replays(ChosenMethod(name="ddp", options={}))

    def at(self, bandwidth: float) -> ClusterProfile:
        """The same cluster with `bandwidth` of the hosts' links, as named; the other direction in proportion."""
        there = cluster_of(dataclasses.replace(self.numbers, bandwidth=bandwidth), self.record)
        back = self.profile.bandwidth_in / self.profile.bandwidth_out
        return dataclasses.replace(there, bandwidth_in=back * there.bandwidth_out)


class _Replays:
    """The steps of a method at several bandwidths; each is replayed once."""

    def __init__(self, cluster: _Cluster, method: ChosenMethod, *, typed: bool) -> None:
        self.method, self.cluster = method, cluster
        record, nodes = cluster.record, cluster.numbers.nodes
        found = size_trace(record, method, nodes, **({} if typed else {"most": _EVENTS}))
        if found is None:
            from istbench.plan.script_trace import script_trace  # torch, which a plan from sizes does not need

            found = script_trace(record, method, nodes)
        self.trace: Trace = found
        self.step_s = step_seconds(self.trace, cluster.profile)
        self._found = {cluster.given: self.step_s}
        self._points = {_SLOWEST, _WIDEST}

    def at(self, bandwidth: float) -> float:
        """Seconds of a step at `bandwidth` of the hosts' links, as named."""
        if bandwidth not in self._found:
            self._found[bandwidth] = step_seconds(self.trace, self.cluster.at(bandwidth))
        return self._found[bandwidth]

    def carrying(self, share: float) -> float:
        """Seconds of a step where all links between hosts carry this `share` of their bandwidth."""
        return step_seconds(self.trace, self.cluster.profile.with_links(share))

    def bandwidth_for(self, level: float) -> float | None:
        """The least bandwidth at which the share `level` of a step computes; None if no link is that fast.

        It is a point of a grid, so that it does not depend on the bandwidth given; the point below does not reach
        `level`.
        """
        longest = self.cluster.alone_s / level

        def late(point: float) -> float:
            self._points.add(int(point))
            return self.at(_bits(point)) - longest

        if late(_WIDEST) > 0:
            return None
        low = max((point for point in self._points if late(point) > 0), default=_SLOWEST)
        high = min(point for point in self._points if late(point) <= 0)
        return _bits(sign_change(late, low, high, near=1, between=_between)[1])

    def steps_for(self, level: float) -> int:
        """The least local steps of a round with the share `level` of computing, at the bandwidth given."""
        alone_s = self.cluster.alone_s
        exposed = (self.step_s - alone_s) * self.trace.round_steps
        return max(1, math.ceil(exposed * level / ((1 - level) * alone_s) - _CLOSE))


def _bits(point: float) -> float:
    """Bits/s at a point of the grid."""
    return float(10 ** (point / _GRID))


def _between(low: float, high: float, share: float) -> float:
    """The point at this share of the way between two points, over 1 / bandwidth, as seconds of bytes are."""
    slow, fast = 1 / _bits(low), 1 / _bits(high)
    return min(max(low + 1, math.ceil(-_GRID * math.log10(slow + share * (fast - slow)))), high - 1)


def estimate(numbers: Numbers, methods: Sequence[ChosenMethod] = ()) -> Estimate:
    """The rows of `methods`, by default all that follow from sizes.

    Raises:
        UserError: for numbers that contradict each other, or for a typed method that cannot train such a model.
    """
    numbers.check()
    cluster = _Cluster(numbers)
    rows: list[EstimateRow] = []
    left_out: list[str] = []
    slow = {plan.name for plan in SIZE_PLANS.values() if plan.many_messages and numbers.nodes > _QUICK_NODES}
    if slow and not methods:
        names = ", ".join(name for name in SIZE_PLANS if name in slow)
        left_out.append(f"{names}: on more than {_QUICK_NODES} nodes they take up to a minute to replay; name them")
    for method in methods or _rows_of(plan for plan in SIZE_PLANS.values() if plan.name not in slow):
        try:
            rows.append(_row(cluster.replays(method, typed=bool(methods))))
        except UserError as error:
            if methods:
                raise
            left_out.append(f"{method.label}: {error}")
    return Estimate(
        numbers=numbers,
        record=cluster.record,
        cluster=cluster.profile,
        rows=tuple(sorted(rows, key=lambda row: _rounded(row.step_s))),
        left_out=tuple(left_out),
        host_samples=_host_samples(numbers),
        held_by=_held_by(cluster.of_ddp()),
        helps=_helps(cluster),
        ddp_s=cluster.of_ddp().step_s,
    )


def _rows_of(plans: Iterable[SizePlan]) -> list[ChosenMethod]:
    return chosen_methods(f"{plan.name} {options}" for plan in plans for options in ("", *plan.rows))


def without_plan() -> str:
    """The installed methods without a row, and the way to one."""
    names = [name for name in names_of("methods") if name not in SIZE_PLANS]
    others = f"{', '.join(names)} (numbers do not give their messages; name one to try its own plan)"
    return ", ".join([others, *(plan.unknown for plan in SIZE_PLANS.values() if plan.unknown)])


def curves(found: Estimate) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Seconds of a step at bandwidths around the one given, by method and label."""
    cluster = _Cluster(found.numbers)
    powers = (step / _CURVE_STEPS for step in range(-2 * _CURVE_STEPS, 2 * _CURVE_STEPS + 1))
    bandwidths = sorted(min(FASTEST, cluster.given * 10**power) for power in powers)
    lines = {}
    for row in found.rows:
        replays, key = cluster.replays(row.method), (row.method.name, row.method.label)
        lines[key] = [(bandwidth, replays.at(bandwidth)) for bandwidth in bandwidths]
    return lines


def _row(replays: _Replays) -> EstimateRow:
    numbers, method = replays.cluster.numbers, replays.method
    least, most = (LEAST_CARRIED, 1.0) if numbers.nominal else CARRIED
    single = numbers.nodes == 1
    plan = SIZE_PLANS.get(method.name)
    in_rounds = plan is not None and bool(plan.every)
    return EstimateRow(
        method=method,
        local_steps=replays.trace.round_steps,
        nodes=numbers.nodes,
        alone_s=replays.cluster.alone_s,
        step_s=replays.step_s,
        low_s=replays.carrying(most),
        high_s=replays.carrying(least),
        sent=sent_in_step(replays.trace, replays.cluster.profile),
        bandwidth_for={} if single else {level: replays.bandwidth_for(level) for level in LEVELS},
        steps_for={level: replays.steps_for(level) for level in LEVELS} if in_rounds and not single else {},
        check=replay_check(method.name, {}),
    )


def _host_samples(numbers: Numbers) -> float | None:
    if numbers.gpus_per_host == 1:
        return None
    host = _Cluster(dataclasses.replace(numbers, nodes=numbers.gpus_per_host))
    return numbers.gpus_per_host * host.alone_s / host.of_ddp().step_s


def _held_by(ddp: _Replays) -> dict[str, float]:
    """Seconds of a step that would go without each hindrance."""
    cluster = ddp.cluster.profile
    near = dataclasses.replace(
        cluster,
        latency_s=0.0,
        host=cluster.host and dataclasses.replace(cluster.host, latency_s=0.0),
    )
    found = {
        "bytes on the hosts' links": ddp.step_s - step_seconds(ddp.trace, cluster.with_bandwidth(FASTEST)),
        "latency": ddp.step_s - step_seconds(ddp.trace, near),
    }
    if cluster.rack is not None or cluster.backplane is not None:
        apart = dataclasses.replace(cluster, rack=None, backplane=None)
        found["links that hosts share"] = ddp.step_s - step_seconds(ddp.trace, apart)
    if cluster.host is not None:
        wide = dataclasses.replace(cluster, host=dataclasses.replace(cluster.host, bandwidth=FASTEST))
        found["links inside a host"] = ddp.step_s - step_seconds(ddp.trace, wide)
    return {name: max(0.0, _rounded(seconds)) for name, seconds in found.items()}


def _rounded(seconds: float) -> float:
    """`seconds` without the last bits, in which equal sums of floats differ."""
    return round(seconds, 12)


def _helps(cluster: _Cluster) -> tuple[tuple[str, float], ...]:
    """Remedies with the seconds of a step. A placement puts all nodes on one host."""
    numbers = cluster.numbers
    texts = [f"{plan.name} {options}" for plan in SIZE_PLANS.values() for options in plan.helps]
    found = []
    for text in texts:
        if numbers.dtype == "float32" or "bf16" not in text:
            with suppress(UserError):  # one that its method refuses for this model helps nobody
                (method,) = chosen_methods([text])
                found.append((method.label, cluster.replays(method).step_s))
    if numbers.hosts > 1 and numbers.nodes <= 16:
        ddp = _Cluster(dataclasses.replace(numbers, gpus_per_host=numbers.nodes)).of_ddp()
        found.append((f"ddp with all {numbers.nodes} {numbers.node_name}s in one host", ddp.step_s))
    return tuple(sorted(found, key=lambda pair: _rounded(pair[1])))


def checked_lines(numbers: Numbers, cluster: ClusterProfile, rows: Sequence[EstimateRow]) -> list[str]:
    """Where the numbers lie outside of what replays were checked with, a sentence each."""
    bandwidth = cluster.bandwidth_out / cluster.payload
    lines = []
    checks = [row.check.check for row in rows if row.check.check is not None]
    if numbers.nodes > max((max(check.nodes) for check in checks), default=0):
        lines.append(
            f"labs checked replays on 2 and 4 nodes, others' measurements on up to 16, here {numbers.nodes}"
        )
    if bandwidth > 3e9:
        lines.append("labs checked replays from 100 Mbit/s to 3 Gbit/s; above, only others' nominal rates")
    if bandwidth < 49e6:
        lines.append("no measurement is on a link below 50 Mbit/s")
    if cluster.latency_s > 10e-3:
        lines.append("no measurement of others has more than 10 ms one way")
    if numbers.gpus_per_host > 1:
        lines.append("several GPUs a host: others measured 1.0 to 1.4 times the predicted seconds by NCCL")
    if numbers.nominal:
        lines.append(
            f"nominal rates above {NOMINAL / 1e9:g} Gbit/s are rarely carried: others had 13.6 of 25 by NCCL over "
            f"TCP; the range assumes {LEAST_CARRIED:g} to 1; `istbench doctor --hosts` measures yours"
        )
    return lines
