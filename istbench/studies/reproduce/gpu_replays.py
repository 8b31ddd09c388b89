"""Traces of P3 at the speed of a Quadro P4000: the runs by configuration, computing speed, and seconds a step."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import COMPUTE, MARK, STEP, Trace
from istbench.cluster.trace_file import load_trace
from istbench.results.load import Run
from istbench.studies.reproduce.paper import PUBLISHED

PROFILE = PUBLISHED / "p4000.toml"
PEAK_GFLOPS = 5300.0  # of a Quadro P4000
BATCH = 32  # samples of a node's step in the paper
PAYLOAD = 0.956  # of a link's rate, less the headers of Ethernet, IP and TCP
SPLIT_PARAMS = 1_000_000  # of MXNet's parameter server
SLICE_PARAMS = 50_000  # of the paper

BASELINE, WHOLE, P3, SLICING, PRIORITY = "baseline", "whole tensors", "p3", "slicing alone", "priority alone"


@dataclass(frozen=True, kw_only=True)
class Model:
    """title: for readers. samples: what it trains on. utilisation: of the GPU's peak, an estimate."""

    title: str
    samples: str
    utilisation: float


# VGG-19 and ResNet-50 as a GTX 1080, of the same generation, trains them; the others as ResNet-50.
MODELS = {
    "resnet50": Model(title="ResNet-50", samples="images", utilisation=0.28),
    "vgg19": Model(title="VGG-19", samples="images", utilisation=0.75),
    "inception_v3": Model(title="Inception v3", samples="images", utilisation=0.28),
    "translation": Model(title="Translation (Sockeye's sizes)", samples="sentences", utilisation=0.28),
}


@dataclass(frozen=True)
class Setting:
    """speed: of the GPU, over the estimate. overhead_s: of a message on its connection, seconds."""

    speed: float
    overhead_s: float


ESTIMATED = Setting(1.0, 20e-6)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Records of one model: traces by configuration and by slice size. gflop: of a sample in a step."""

    gflop: float
    parameters: int
    batch_size: int
    nodes: int
    traces: dict[str, Trace]
    sweep: dict[int, Trace]

    @property
    def volume_bits(self) -> float:
        """Bits that a node sends in a step: its gradients to other servers, and its served values to all."""
        return 2 * 32 * self.parameters * (self.nodes - 1) / self.nodes

    def step_seconds(self, model: Model, speed: float = 1.0) -> float:
        """Seconds that a node computes in a step of the paper's batch, `speed` times as fast as estimated."""
        return BATCH * self.gflop / (PEAK_GFLOPS * model.utilisation * speed)


def model_of(run: Run) -> str:
    """The network of `run`, as `MODELS` names it."""
    config = run.header.config
    return str(config.workload_options.get("model", config.workload))


def read(runs: Iterable[Run]) -> tuple[dict[str, Recorded], list[str]]:
    """The records of `runs`, by model, in the order of `MODELS`, and a line for each unreadable trace."""
    by_model: dict[str, list[tuple[Run, Trace]]] = {}
    problems: list[str] = []
    for run in runs:
        try:
            by_model.setdefault(model_of(run), []).append((run, load_trace(run.directory.trace)))
        except UserError as error:
            problems.append(f"{run.header.cell}: {error}")
    return {name: _recorded(by_model[name]) for name in MODELS if by_model.get(name)}, problems


def _recorded(runs: list[tuple[Run, Trace]]) -> Recorded:
    traces, sweep = {}, {}
    for run, trace in runs:
        options = run.header.config.method_options
        label = configuration(run.header.method, options)
        if label:
            traces[label] = trace
        if options.get("priority") and options["slice_params"]:
            sweep[options["slice_params"]] = trace
    first, _ = runs[0]
    header = first.header
    return Recorded(
        gflop=_gflop(first), parameters=header.parameters, batch_size=header.batch_size,
        nodes=header.nodes, traces=traces, sweep=dict(sorted(sweep.items())),
    )  # fmt: skip


def configuration(method: str, options: Mapping[str, Any]) -> str | None:
    """The name of a method with its options; None for a slice size of the sweep."""
    split = options["split_params"] == SPLIT_PARAMS
    if method == "parameter_server":
        return BASELINE if split else WHOLE
    if options["slice_params"] == SLICE_PARAMS:
        return P3 if options["priority"] else SLICING
    return PRIORITY if options["slice_params"] == 0 and split else None


def _gflop(run: Run) -> float:
    """Multiplications and additions of a sample's forward and backward pass, 10^9, counted without computing."""
    import torch  # which replays do not need
    from torch.utils.flop_counter import FlopCounterMode

    from istbench.node.registry import build_workload, plugins_of

    config = run.header.config
    workload = build_workload(config.workload, config.workload_options, plugins_of(config, ()))
    workload.open(workload.prepare(None, Path(), lambda *_: None))
    inputs, targets = workload.train_batch(torch.arange(2), torch.Generator())
    with torch.device("meta"):
        model = workload.build_model()
    with FlopCounterMode(display=False) as counter:
        workload.loss(model, (inputs.to("meta"), targets.to("meta"))).backward()
    return counter.get_total_flops() / len(inputs) / 1e9


def levelled(trace: Trace, step_seconds: float) -> Trace:
    """`trace` with every node's training thread computing `step_seconds` in every step, distributed as recorded.

    The runs were recorded one after the other, on cores that the nodes share. After this they differ only in their
    messages and in the work of their servers. That work is a CPU's, not the GPU's, and stays as recorded.
    """
    nodes = []
    for events in trace.nodes:
        events = events.copy()
        for step in _steps(events):  # views
            computed = step["code"] == COMPUTE
            step["seconds"][computed] *= step_seconds / step["seconds"][computed].sum()
        nodes.append(events)
    return dataclasses.replace(trace, nodes=tuple(nodes))


def update_seconds(trace: Trace) -> float:
    """Seconds of one recording core that a node's server works in a step, the median of steps."""
    steps = [step for events in trace.nodes for step in _steps(events)]
    return float(np.median([step["seconds"][step["code"] != COMPUTE].sum() for step in steps]))


def _steps(events: NDArray[Any]) -> list[NDArray[Any]]:
    """Views of the events of each step."""
    ends = np.flatnonzero((events["code"] == MARK) & (events["kind"] == STEP)) + 1
    return np.split(events, ends)[:-1]


def seconds_a_step(trace: Trace, setting: Setting, bandwidth: float, compute: float) -> float:
    """Seconds from the end of one step to the next; a node computes `compute` of them. bandwidth: of links, in
    Gbit/s.

    The first step of the sample is left out, because it waits for nothing from before the recording.
    """
    there = load_profile(str(PROFILE)).with_bandwidth(PAYLOAD * 1e9 * bandwidth)
    there = dataclasses.replace(there, overhead_s=setting.overhead_s)
    found = replay(levelled(trace, compute), there, compute_scale=1.0)
    ends = found.finish_s[:, found.mark_kind == STEP].max(axis=0)
    return float((ends[-1] - ends[0]) / (len(ends) - 1))


def replayed(name: str, recorded: Recorded, setting: Setting, bandwidths: Sequence[float]) -> "Gains":
    """Seconds a step of every configuration at every bandwidth, Gbit/s."""
    compute = recorded.step_seconds(MODELS[name], setting.speed)
    seconds = {
        label: {bandwidth: seconds_a_step(trace, setting, bandwidth, compute) for bandwidth in bandwidths}
        for label, trace in recorded.traces.items()
    }
    return Gains(compute=compute, nodes=recorded.nodes, seconds=seconds)


def swept(name: str, recorded: Recorded, bandwidths: Sequence[float]) -> "Sweep":
    """Seconds per step of p3 by bandwidth (Gbit/s) and slice size, and of the baseline by bandwidth."""
    compute = recorded.step_seconds(MODELS[name])

    def seconds(trace: Trace, bandwidth: float) -> float:
        return seconds_a_step(trace, ESTIMATED, bandwidth, compute)

    return Sweep(
        seconds={b: {size: seconds(trace, b) for size, trace in recorded.sweep.items()} for b in bandwidths},
        baseline={b: seconds(recorded.traces[BASELINE], b) for b in bandwidths},
    )


@dataclass(frozen=True, kw_only=True)
class Gains:
    """Seconds per step by configuration and Gbit/s, on `nodes` nodes. compute: the seconds that a node computes."""

    compute: float
    nodes: int
    seconds: dict[str, dict[float, float]]

    def gain(self, label: str, bandwidth: float, over: str = BASELINE) -> float:
        """The gain in samples per second of `label` over `over`, as a share."""
        return self.seconds[over][bandwidth] / self.seconds[label][bandwidth] - 1

    def largest(self, label: str) -> tuple[float, float]:
        """The largest gain of `label` over the baseline, and its Gbit/s."""
        return max((self.gain(label, bandwidth), bandwidth) for bandwidth in self.seconds[label])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Seconds a step of p3 by Gbit/s and slice size, and of the baseline by Gbit/s."""

    seconds: dict[float, dict[int, float]]
    baseline: dict[float, float]

    def gain(self, bandwidth: float, slice_params: int) -> float:
        """The gain in samples per second of p3 over the baseline, as a share."""
        return self.baseline[bandwidth] / self.seconds[bandwidth][slice_params] - 1
