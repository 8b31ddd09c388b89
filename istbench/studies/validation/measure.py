"""Plan runs, train them in labs, replay the traces of the same runs, and return the error of each replay."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import msgspec

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.interval import Interval
from istbench.base.options.run import Lab, RunRequest
from istbench.base.scratch import scratch_folder
from istbench.base.units import parse_bandwidth
from istbench.cluster.clock import last_exchange_seconds
from istbench.cluster.in_turns import seen_on
from istbench.cluster.message_ways import MessageWays
from istbench.cluster.profile import TCP_PAYLOAD, ClusterProfile, MessageCosts, Rack, SharedHost
from istbench.cluster.simulator import Replay, replay
from istbench.cluster.trace import Trace, segment
from istbench.cluster.trace_file import load_trace
from istbench.launch.backends.backend import OncePerLine, Screen
from istbench.launch.backends.here import Here
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.message_costs import measure_message_costs
from istbench.node.registry import build_method
from istbench.results.load import load_run
from istbench.studies.validation.table import ReplayError
from istbench.workloads.base import ShowProgress

# A segment ends with an evaluation. The first one warms up: links fill their buckets and connections their windows.
SEGMENTS = 3
_LEAST_ROUNDS, _LEAST_STEPS = 2, 10
_MOST_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """The steps of a run: a segment to warm up, and then the measured segments, all of whole rounds."""

    segment_rounds: int
    round_steps: int

    @property
    def segment_steps(self) -> int:
        """Local steps of a node in a segment."""
        return self.segment_rounds * self.round_steps

    @property
    def steps(self) -> int:
        """Local steps of a node in the measured segments."""
        return SEGMENTS * self.segment_steps

    @property
    def recorded_steps(self) -> int:
        """Local steps that a trace can have: a trace begins after the first round."""
        return self.segment_steps + self.steps - self.round_steps

    def fit(self, request: RunRequest) -> RunRequest:
        """`request` with these steps."""
        every = Interval(steps=self.segment_steps)
        return msgspec.structs.replace(request, steps=self.steps + self.segment_steps, eval_every=every)


def measured_rounds(round_s: float, round_steps: int, seconds: float) -> MeasuredSteps:
    """The rounds of `round_s` seconds each that take about `seconds`, and not much longer if rounds are long."""
    rounds = math.ceil(seconds / SEGMENTS / max(round_s, 1e-6))
    most = max(1, _MOST_STEPS // (SEGMENTS * round_steps))
    return MeasuredSteps(segment_rounds=max(1, min(rounds, most)), round_steps=round_steps)


def rehearsed(round_steps: int) -> MeasuredSteps:
    """The rounds of a rehearsal: at least two, and ten local steps, in each segment."""
    rounds = max(_LEAST_ROUNDS, -(-_LEAST_STEPS // round_steps))
    return MeasuredSteps(segment_rounds=rounds, round_steps=round_steps)


def round_steps_of(request: RunRequest, progress: ShowProgress) -> int:
    """Local steps of a round of `request`.

    Raises:
        UserError: if the cell cannot run.
    """
    config = prepare_cell(msgspec.structs.replace(request, steps=1), progress).config
    method = build_method(config.method, config.method_options, seed=config.seed, plugins=config.plugins)
    return method.round_steps


def fitting(
    candidates: Sequence[RunRequest], progress: ShowProgress, named: Collection[str] = ()
) -> list[RunRequest]:
    """Of the `candidates`, the first of each method and number of nodes that can run.

    Raises:
        UserError: if none of them can run, or a method among `named` cannot, with the reason for its first one.
    """
    found: dict[tuple[str, int], RunRequest] = {}
    refusals: dict[str, UserError] = {}
    for request in candidates:
        if (request.method, request.nodes) in found:
            continue
        try:
            prepare_cell(msgspec.structs.replace(request, steps=1), progress)
        except UserError as error:
            refusals.setdefault(request.method, error)
            continue
        found[request.method, request.nodes] = request
    fit = {method for method, _ in found}
    refused = [error for method, error in refusals.items() if method not in fit and (method in named or not fit)]
    if refused:
        raise refused[0]
    return list(found.values())


_CARRYING_BANDWIDTH = 3e9
_SHARE = 0.5
# A run that measures less than this part of the seconds is repeated with more rounds.
_SHORT = 0.7


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """The data of one run, the seconds of its measured steps, those of the whole run, and its trace."""

    data: str
    seconds: float
    whole_s: float
    trace: Trace


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A short run on the loopback interface. Its trace tells how long the same rounds take on shaped links."""

    request: RunRequest
    round_steps: int
    timed: TimedRun


@dataclass(frozen=True, kw_only=True)
class LabRun:
    """A run to measure: where, for how many rounds, and how long that should take.

    Attributes:
        cell: the request with its steps. network: None for one node without links. environment: as in
            `Measurement`. share: of its cores that a node gets. expected_s: by the rehearsal, with the warm-up.
    """

    cell: RunRequest
    measured: MeasuredSteps
    network: ShapedNetwork | None
    bandwidth: str
    rehearsal: Rehearsal
    environment: str = ""
    share: float = 1.0
    expected_s: float

    @cached_property
    def cores(self) -> float:
        """Cores of a node."""
        return max(1, cores() // self.cell.nodes) * self.share

    @property
    def recording(self) -> ShapedNetwork | None:
        """The network, where a run records all its rounds but the first."""
        steps = self.measured.recorded_steps
        return dataclasses.replace(self.network, recorded_steps=steps) if self.network else None

    @property
    def dilation(self) -> float:
        """The factor by which the lab runs slower than its clock says."""
        return self.network.lab.dilation if self.network else 1.0


class Validation:
    """Measures `requests` in labs of each of `bandwidths`, `repeats` times in turn.

    Args:
        seconds: to measure in one run, at least, on the clock of this machine.
        lab: the other fields of `ShapedNetwork`, such as `latency_s`.

    Raises:
        UserError: if a request or a bandwidth cannot work, or this machine cannot make a lab.
        RunFailed: if a run does not finish.
    """

    def __init__(
        self,
        requests: Sequence[RunRequest],
        bandwidths: Sequence[str],
        *,
        repeats: int,
        seconds: float,
        display: Screen,
        **lab: Any,
    ) -> None:
        self._requests, self._bandwidths = requests, bandwidths
        self._repeats, self._seconds, self._lab = repeats, seconds, lab
        self._display = OncePerLine(display)
        self._costs: dict[ShapedNetwork, MessageWays] = {}

    def of_the_network(self) -> Iterator[ReplayError]:
        """Replay each run's own trace, without scaling its computing: an error is one of the network's model."""
        return self._measure(self._points(ShapedNetwork), scaling=False)

    def of_scaling(self) -> Iterator[ReplayError]:
        """Replay traces from elsewhere for nodes of half a core, and for one node with all cores of this machine.

        The traces are from the loopback interface, with one thread. The scale of computing follows from the speeds
        that both runs measured, as in a user's replay.
        """
        shared_cores = partial(ShapedNetwork, share=_SHARE)
        points = self._points(shared_cores, environment=f"{_SHARE:g} of a core", share=_SHARE)
        if cores() > 1:
            alone = {request.method: msgspec.structs.replace(request, nodes=1) for request in self._requests}
            for rehearsal in self._rehearse(list(alone.values())):
                point = self._point(rehearsal, None, self._bandwidths[-1], environment=f"{cores()} threads")
                points.append(dataclasses.replace(point, cell=msgspec.structs.replace(point.cell, threads=cores())))
        return self._measure(points, scaling=True)

    def _points(self, make: Callable[..., ShapedNetwork], **fields: Any) -> list[LabRun]:
        """A run of each request at each bandwidth; `fields` are as in `LabRun`."""
        # Make all networks before hours of training.
        networks = {
            (request.nodes, text): make(nodes=request.nodes, bandwidth=parse_bandwidth(text), **self._lab)
            for request in self._requests
            for text in self._bandwidths
        }
        for network in networks.values():
            network.check()
        return [
            self._point(rehearsal, networks[rehearsal.request.nodes, text], text, **fields)
            for rehearsal in self._rehearse(self._requests)
            for text in self._bandwidths
        ]

    def _rehearse(self, requests: Sequence[RunRequest]) -> list[Rehearsal]:
        self._display.note(f"rehearsing {len(requests)} runs on the loopback interface")
        found = []
        for request in requests:
            round_steps = round_steps_of(request, self._display.preparing)
            timed = self._run(rehearsed(round_steps).fit(request), None)
            found.append(Rehearsal(request=request, round_steps=round_steps, timed=timed))
        return found

    def _point(
        self,
        rehearsal: Rehearsal,
        network: ShapedNetwork | None,
        bandwidth: str,
        *,
        environment: str = "",
        share: float = 1.0,
    ) -> LabRun:
        trace, dilation = rehearsal.timed.trace, network.lab.dilation if network else 1.0
        costs = self._carrying(network, trace)
        profile = lab_profile(network.lab if network else None, costs, 1.0)
        round_s = replay(trace, profile, compute_scale=1 / share).seconds / trace.rounds * dilation
        measured = measured_rounds(round_s, rehearsal.round_steps, self._seconds)
        rounds = (SEGMENTS + 1) * measured.segment_rounds
        return LabRun(
            cell=measured.fit(rehearsal.request),
            measured=measured,
            network=network,
            bandwidth=bandwidth,
            rehearsal=rehearsal,
            environment=environment,
            share=share,
            expected_s=rehearsal.timed.whole_s + rounds * round_s,
        )

    def _carrying(self, network: ShapedNetwork | None, trace: Trace) -> MessageCosts | None:
        """The costs of the messages of `trace` on `network`; None without one."""
        if network is None:
            return None
        return self._ways(network).of(seen_on(trace, lab_profile(network.lab, None, 1.0)))

    def _ways(self, network: ShapedNetwork) -> MessageWays:
        """The costs of messages in a lab of such nodes. They do not depend on the bandwidth of the links.

        Slow links would make the measurement slow.
        """
        fast = dataclasses.replace(
            network,
            bandwidth=_CARRYING_BANDWIDTH,
            latency_s=0.0,
            host_nodes=1,
            inside=None,
            racks=1,
            uplink=None,
            recorded_steps=0,
        )
        if fast not in self._costs:
            self._display.note(f"measuring messages between {fast.nodes} nodes, {fast.lab.summary}")
            self._costs[fast] = measure_message_costs(fast.nodes, fast, fast.lab.dilation)
        return self._costs[fast]

    def _measure(self, points: list[LabRun], *, scaling: bool) -> Iterator[ReplayError]:
        total, expected = len(points) * self._repeats, self._repeats * sum(point.expected_s for point in points)
        self._display.note(f"{total} runs of at least {self._seconds:g} s each, about {_minutes(expected)} in all")
        started, done_s = time.monotonic(), 0.0
        for number in range(total):
            repeat, place = divmod(number, len(points))
            point = points[place]
            timed = self._run(point.cell, point.recording)
            if timed.seconds * point.dilation < _SHORT * self._seconds:
                point = points[place] = self._longer(point, timed)
                timed = self._run(point.cell, point.recording)
            error = self._error(point, timed, repeat, scaling=scaling)
            done_s += point.expected_s
            left = (expected - done_s) / done_s * (time.monotonic() - started)
            where = ", ".join(filter(None, [f"{error.nodes} nodes", error.bandwidth, error.environment]))
            self._display.note(
                f"{number + 1} of {total}: {error.workload} by {error.method}, {where}: measured "
                f"{error.measured_s:.2f} s, replayed {error.error:+.1%}; about {_minutes(left)} left"
            )
            yield error

    def _longer(self, point: LabRun, timed: TimedRun) -> LabRun:
        """`point` with more rounds: those of its run, in `timed`, took less time than the rehearsal promised."""
        round_s = timed.seconds * point.dilation / (SEGMENTS * point.measured.segment_rounds)
        measured = measured_rounds(round_s, point.measured.round_steps, self._seconds)
        return dataclasses.replace(point, cell=measured.fit(point.cell), measured=measured)

    def _run(self, request: RunRequest, network: ShapedNetwork | None) -> TimedRun:
        backend = Here(lab=network)
        started = time.monotonic()
        with scratch_folder() as folder:
            (outcome,) = backend.run([backend.fit(request)], folder, False, self._display)
            run = load_run(outcome.finished())
            warm, *_, last = run.curve.evaluations[1:]
            return TimedRun(
                data=run.header.data_source.seen,
                seconds=last.train_s - warm.train_s,
                whole_s=time.monotonic() - started,
                trace=load_trace(run.directory.trace),
            )

    def _error(self, point: LabRun, there: TimedRun, repeat: int, *, scaling: bool) -> ReplayError:
        """The error of the replay of `there`, the run of `point`; with `scaling`, of its rehearsal."""
        costs = self._ways(point.network).of(there.trace) if point.network else None
        profile = lab_profile(point.network.lab if point.network else None, costs, point.cores)
        profile = as_fast_as(profile, there.trace, point.share)
        before = point.rehearsal.timed.trace
        found = _replayed(before, profile, point.measured, None if scaling else 1.0)
        elsewhere_s = _seconds(found, before)
        if scaling:
            own = _replayed(there.trace, profile, point.measured, 1 / point.share)
            replayed_s, elsewhere_s = elsewhere_s, _seconds(own, there.trace)
        else:
            replayed_s = _replayed_segments(there.trace, profile, point.measured)
        return ReplayError(
            workload=point.cell.workload,
            method=point.cell.method,
            nodes=point.cell.nodes,
            bandwidth=point.bandwidth,
            repeat=repeat,
            steps=point.measured.steps,
            measured_s=there.seconds,
            replayed_s=replayed_s,
            recorded_elsewhere_s=elsewhere_s,
            scale=found.compute_scale if scaling else 1.0,
            environment=point.environment,
            dilation=point.dilation,
            data=there.data,
            doubt=there.trace.meta.doubt or point.rehearsal.timed.trace.meta.doubt,
            carrying=self._carrying(point.network, there.trace),
        )


def _replayed(trace: Trace, profile: ClusterProfile, measured: MeasuredSteps, scale: float | None) -> Replay:
    return replay(trace, profile, rounds=measured.segment_rounds, compute_scale=scale)


def _replayed_segments(trace: Trace, profile: ClusterProfile, measured: MeasuredSteps) -> float:
    """Seconds of the measured segments in the trace of a whole run, each replayed with its own computing."""
    rounds = measured.segment_rounds
    return sum(
        replay(segment(trace, (1 + number) * rounds - 1, rounds), profile, compute_scale=1.0).seconds
        for number in range(SEGMENTS)
    ) + last_exchange_seconds(trace, profile)


def _seconds(segment: Replay, trace: Trace) -> float:
    """Seconds of the measured segments: each begins with idle links, and ends when all messages have arrived.

    The last one ends with the exchange before the last evaluation.
    """
    return SEGMENTS * segment.seconds + last_exchange_seconds(trace, segment.profile)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


def as_fast_as(profile: ClusterProfile, trace: Trace, share: float) -> ClusterProfile:
    """`profile` with the speed of the nodes that recorded `trace`, which had `share` of their time.

    A trace has speeds by CPU time, which a share of a core does not change.
    """
    memory, gather = trace.meta.memory_gb_per_s, trace.meta.gather_gb_per_s
    return dataclasses.replace(
        profile,
        gflops=(trace.gflops or 1.0) * share,
        memory_gb_per_s=memory and memory * share,
        gather_gb_per_s=gather and gather * share,
    )


def lab_profile(lab: Lab | None, carrying: MessageCosts | None, node_cores: float) -> ClusterProfile:
    """The lab as a cluster, whose nodes have `node_cores` cores of this machine; without a lab, one node alone."""
    links = lab or Lab(summary="no links", bandwidth=_CARRYING_BANDWIDTH)
    costs = carrying or MessageCosts(message_s=0.0, next_s=0.0, cpu_s_per_message=0.0, cpu_s_per_byte=0.0)
    payload = links.bandwidth * TCP_PAYLOAD
    host, rack = links.hosts, links.uplink
    host_nodes = 1 if host is None else host.nodes
    return ClusterProfile(
        name="lab",
        summary="this machine's namespaces",
        gflops=1.0,
        source="this machine",
        memory_gib=1.0,
        bandwidth_out=payload,
        bandwidth_in=payload,
        latency_s=links.latency_s,
        message_s=costs.message_s - costs.next_s,
        slow_start=False,  # as the lab's kernel parameters say
        overhead_s=costs.next_s,
        full_duplex=True,
        price_per_hour=0.0,
        price_date="",
        price_source="",
        burst_bytes=links.burst_bytes * TCP_PAYLOAD,
        host=SharedHost(nodes=host.nodes, bandwidth=host.bandwidth, latency_s=0.0) if host else None,
        rack=Rack(hosts=rack.nodes // host_nodes, uplink=rack.bandwidth * TCP_PAYLOAD) if rack else None,
        cores=node_cores,
        cpu_s_per_byte=costs.cpu_s_per_byte,
        cpu_s_per_message=costs.cpu_s_per_message,
    )
