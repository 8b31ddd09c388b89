"""Train in labs, replay the traces of the same runs, and return the error of each replay."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from istbench.backends.here import Here
from istbench.cells.resolve import prepare_cell
from istbench.cluster.profile import ClusterProfile, MessageCosts, Rack, parse_bandwidth
from istbench.cluster.simulator import replay
from istbench.cluster.trace import Trace
from istbench.cluster.trace_file import load_trace
from istbench.config.interval import Interval
from istbench.config.run import Lab, RunRequest
from istbench.lab.network import ShapedNetwork
from istbench.machine import cores
from istbench.processes.carrying import Ways, measure_carrying
from istbench.registry import build_method
from istbench.results.load import load_run
from istbench.validation.measurement import ReplayError

# Measured rounds, after a warm-up round in which links fill their buckets and connections their windows.
_MEASURED = 3
_LEAST_STEPS = 10

_CARRYING_BANDWIDTH = 3e9

# A full Ethernet frame of 1514 bytes carries 1448 bytes of a TCP segment.
_PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class Timed:
    """The data of one run, the seconds and number of its measured steps, and its trace."""

    data: str
    seconds: float
    steps: int
    trace: Trace


def validate(
    requests: Sequence[RunRequest],
    bandwidths: Sequence[str],
    repeats: int,
    latency_s: float,
    display: Any,
    racks: int = 1,
    uplink: float | None = None,
) -> Iterator[ReplayError]:
    """Run each of `requests` on loopback and in a lab of each bandwidth, `repeats` times in turn, and replay.

    racks, uplink: of the labs, as `ShapedNetwork` takes them.

    Raises:
        UserError: if a request or bandwidth cannot work, or this machine cannot make a lab.
        RunFailed: if a run does not finish.
    """
    nodes = requests[0].nodes
    networks = {
        text: ShapedNetwork(
            nodes=nodes, bandwidth=parse_bandwidth(text), latency_s=latency_s, racks=racks, uplink=uplink
        )
        for text in bandwidths
    }
    timed = [_in_whole_rounds(request, display) for request in requests]
    # The cost of a message does not depend on the bandwidth, and slow links make its measurement slow.
    fast = ShapedNetwork(nodes=nodes, bandwidth=_CARRYING_BANDWIDTH)
    ways = measure_carrying(fast.nodes, fast, fast.lab.dilation)
    for repeat in range(repeats):
        for request in timed:
            elsewhere = _run(request, None, display)
            for text, network in networks.items():
                there = _run(request, network, display)
                yield ReplayError(
                    method=request.method,
                    nodes=request.nodes,
                    bandwidth=text,
                    repeat=repeat,
                    measured_s=there.seconds,
                    replayed_s=_replayed(there.trace, network.lab, ways, there.steps),
                    recorded_elsewhere_s=_replayed(elsewhere.trace, network.lab, ways, there.steps),
                    dilation=network.lab.dilation,
                    data=there.data,
                    doubt=there.trace.meta.doubt or elsewhere.trace.meta.doubt,
                    carrying=ways.of(there.trace),
                )


def _run(request: RunRequest, network: ShapedNetwork | None, display: Any) -> Timed:
    backend = Here(lab=network)
    with tempfile.TemporaryDirectory(prefix="istbench-") as folder:
        (outcome,) = backend.run([backend.fit(request)], Path(folder), False, display)
        run = load_run(outcome.finished())
        warm, *_, last = run.curve.evaluations[1:]
        seen = run.header.data_source.seen
        return Timed(seen, last.train_s - warm.train_s, last.step - warm.step, load_trace(run.directory.trace))


def _in_whole_rounds(request: RunRequest, display: Any) -> RunRequest:
    """`request` with an evaluation between warm-up and measured steps, both in whole rounds."""
    config = prepare_cell(msgspec.structs.replace(request, steps=1), display.preparing).config
    method = build_method(config.method, config.method_options, seed=config.seed, plugins=config.plugins)
    round_steps = method.round_steps
    part = round_steps * -(-_LEAST_STEPS // round_steps)
    return msgspec.structs.replace(request, steps=(1 + _MEASURED) * part, eval_every=Interval(steps=part))


def _replayed(trace: Trace, lab: Lab, ways: Ways, steps: int) -> float:
    share = max(1, cores() // trace.world_size)
    done = replay(trace, lab_profile(lab, ways.of(trace), share), compute_scale=1.0)
    return done.seconds * steps / done.steps


def lab_profile(lab: Lab, carrying: MessageCosts, share: int) -> ClusterProfile:
    """The lab as a cluster. Each node has `share` cores of this machine."""
    payload = lab.bandwidth * _PAYLOAD
    return ClusterProfile(
        name="lab",
        summary="this machine's namespaces",
        gflops=1.0,
        source="this machine",
        memory_gib=1.0,
        bandwidth_out=payload,
        bandwidth_in=payload,
        latency_s=lab.latency_s + carrying.message_s - carrying.next_s,
        overhead_s=carrying.next_s,
        full_duplex=True,
        price_per_hour=0.0,
        price_date="",
        price_source="",
        burst_bytes=lab.burst_bytes * _PAYLOAD,
        rack=Rack(hosts=lab.uplink.nodes, uplink=lab.uplink.bandwidth * _PAYLOAD) if lab.uplink else None,
        cores=float(share),
        cpu_s_per_byte=carrying.cpu_s_per_byte,
        cpu_s_per_message=carrying.cpu_s_per_message,
    )
