"""P3's gains in samples a second, measured or replayed on the paper's GPUs, beside the published ones."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.base.options.run import RunConfig, RunRequest
from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import COMPUTE, MARK, STEP, Trace
from istbench.cluster.trace_file import load_trace
from istbench.report.tables.numbers import number
from istbench.results.load import Run
from istbench.results.stats import SeedMedian, seed_median
from istbench.studies.reproduce.clocks import MeasuredClock
from istbench.studies.reproduce.curves import range_text
from istbench.studies.reproduce.figures import (
    SpeedUpFigure,
    beside,
    is_over,
    network_words,
    node_differences,
    published,
    published_notes,
    row_of,
)
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Comparison, Difference, Subject

PROFILE = PUBLISHED / "p4000.toml"
PEAK_GFLOPS = 5300.0  # of a Quadro P4000
BATCH = 32  # samples of a node's step in the paper
PAYLOAD = 0.956  # of a link's rate, less the headers of Ethernet, IP and TCP
SPLIT_PARAMS = 1_000_000  # of MXNet's parameter server
SLICE_PARAMS = 50_000  # of the paper

BANDWIDTHS = (1, 1.5, 2, 2.5, 3, 4, 6, 8, 10, 12, 15, 20, 30)  # Gbit/s

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
class GpuSetting:
    """speed: of the GPU, over the estimate. overhead_s: of a message on its connection, seconds."""

    speed: float
    overhead_s: float


ESTIMATED = GpuSetting(1.0, 20e-6)


@dataclass(frozen=True, kw_only=True)
class ModelTraces:
    """Traces of one model by configuration. gflop: of a sample in a step."""

    gflop: float
    parameters: int
    batch_size: int
    nodes: int
    traces: dict[str, Trace]

    def step_seconds(self, model: Model, speed: float = 1.0) -> float:
        """Seconds that a node computes in a step of the paper's batch, `speed` times as fast as estimated."""
        return BATCH * self.gflop / (PEAK_GFLOPS * model.utilisation * speed)


def volume_bits(parameters: int, nodes: int) -> float:
    """Bits that a node sends in a step: its gradients to other servers, and its served values to all."""
    return 2 * 32 * parameters * (nodes - 1) / nodes


def network_of(cell: RunConfig | RunRequest) -> str:
    """The network that `cell` trains, as `MODELS` names it."""
    return str(cell.workload_options.get("model", cell.workload))


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
        for step in steps_of(events):  # views
            computed = step["code"] == COMPUTE
            step["seconds"][computed] *= step_seconds / step["seconds"][computed].sum()
        nodes.append(events)
    return dataclasses.replace(trace, nodes=tuple(nodes))


def steps_of(events: NDArray[Any]) -> list[NDArray[Any]]:
    """Views of the events of each step."""
    ends = np.flatnonzero((events["code"] == MARK) & (events["kind"] == STEP)) + 1
    return np.split(events, ends)[:-1]


def seconds_a_step(trace: Trace, setting: GpuSetting, bandwidth: float, compute: float) -> float:
    """Seconds from the end of one step to the next; a node computes `compute` of them. bandwidth: of links, in
    Gbit/s.

    The first step of the sample is left out, because it waits for nothing from before the recording.
    """
    there = load_profile(str(PROFILE)).with_bandwidth(PAYLOAD * 1e9 * bandwidth)
    there = dataclasses.replace(there, overhead_s=setting.overhead_s)
    found = replay(levelled(trace, compute), there, compute_scale=1.0)
    ends = found.finish_s[:, found.mark_kind == STEP].max(axis=0)
    return float((ends[-1] - ends[0]) / (len(ends) - 1))


def replayed(name: str, recorded: ModelTraces, setting: GpuSetting, bandwidths: Sequence[float]) -> "Gains":
    """Seconds a step of every configuration at every bandwidth, Gbit/s."""
    compute = recorded.step_seconds(MODELS[name], setting.speed)
    seconds = {
        label: {bandwidth: seconds_a_step(trace, setting, bandwidth, compute) for bandwidth in bandwidths}
        for label, trace in recorded.traces.items()
    }
    return Gains(compute=compute, nodes=recorded.nodes, seconds=seconds)


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


class MeasuredGains(msgspec.Struct, frozen=True, kw_only=True, tag="measured_gains"):
    """Published speed-ups in samples a second, beside the train seconds of our runs.

    sources: names of the papers whose figures count.
    """

    sources: tuple[str, ...]

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        pairs = published_beside(self.sources, subjects)
        rows = [
            _measured_row(figure, one, over) for figure, one in pairs for over in subjects if is_over(figure, over)
        ]
        return Comparison(
            rows=tuple(rows),
            notes=tuple(published_notes(figure for figure, _ in pairs)),
            differences=(
                MeasuredClock().put(subjects, ()).difference,
                Difference(
                    aspect="bandwidth", text="ours is that of your links; `istbench doctor --hosts` measures it."
                ),
                *node_differences(pairs),
            ),
        )


def _measured_row(figure: SpeedUpFigure, subject: Subject, over: Subject) -> Compared:
    theirs, own = _seconds_a_sample(over), _seconds_a_sample(subject)
    seeds = sorted(theirs.keys() & own.keys())
    ours = seed_median([theirs[seed] / own[seed] for seed in seeds]) if seeds else None
    text = "not trained" if ours is None else number(ours.median)
    planned = min(subject.seeds, over.seeds)
    return _row(figure, subject, subject.label, ours, text, len(seeds), planned=planned)


def _seconds_a_sample(subject: Subject) -> dict[int, float]:
    """By seed, train seconds of a run over the samples of all its nodes; none without seconds."""
    ends = {run.header.seed: (run.curve.seconds[-1], run.curve.evaluations[-1].samples) for run in subject.runs}
    return {seed: seconds / samples for seed, (seconds, samples) in ends.items() if seconds > 0 and samples > 0}


class ReplayedGains(msgspec.Struct, frozen=True, kw_only=True, tag="replayed_gains"):
    """P3's speed-ups over the parameter server, replayed on machines with one Quadro P4000 each.

    Traces recorded here have their computing stretched to an estimate of that GPU. Nothing is fitted.

    Attributes:
        source: name of the paper. bandwidths: of the links, Gbit/s.
    """

    source: str
    bandwidths: tuple[float, ...] = BANDWIDTHS

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        recorded, problems = read_by_seed(subjects)
        pairs = published_beside((self.source,), subjects)
        over_seeds = {
            name: [replayed(name, one, ESTIMATED, self.bandwidths) for one in records]
            for name, records in recorded.items()
        }
        return Comparison(
            rows=tuple(
                _replayed_row(figure, one, over_seeds.get(network_of(one.request), [])) for figure, one in pairs
            ),
            notes=(
                *_estimate_notes({name: records[0] for name, records in recorded.items()}),
                *published_notes(figure for figure, _ in pairs),
            ),
            differences=(
                Difference(aspect="clock", text="our speed-ups are replayed, not measured; nothing is fitted."),
                Difference(
                    aspect="machine",
                    text="our runs were recorded on CPU cores, and their computing is stretched to an estimate of "
                    "the paper's GPU, a Quadro P4000.",
                ),
                *node_differences(pairs),
            ),
            problems=tuple(problems),
        )


def published_beside(sources: Sequence[str], subjects: Sequence[Subject]) -> list[tuple[SpeedUpFigure, Subject]]:
    """The published speed-ups of `sources`, each with the subject that trains its method and options."""
    return [
        (figure, one) for figure in published(SpeedUpFigure, sources) for one in subjects if beside(figure, one)
    ]


def read_by_seed(subjects: Sequence[Subject]) -> tuple[dict[str, list[ModelTraces]], list[str]]:
    """The records of each model, one a seed that has the baseline, and a line for each unreadable trace."""
    traced: dict[tuple[str, int], list[tuple[Run, Trace]]] = {}
    problems: list[str] = []
    for run in sorted((run for one in subjects for run in one.runs), key=lambda run: run.header.seed):
        try:
            trace = load_trace(run.directory.trace)
        except UserError as error:
            problems.append(f"{run.header.cell}: {error}")
        else:
            traced.setdefault((network_of(run.header.config), run.header.seed), []).append((run, trace))
    found: dict[str, list[ModelTraces]] = {}
    for name in MODELS:
        for own in (own for (model, _), own in traced.items() if model == name):
            one = _recorded(own)
            if BASELINE in one.traces:
                found.setdefault(name, []).append(one)
    return found, problems


def _recorded(runs: Sequence[tuple[Run, Trace]]) -> ModelTraces:
    labelled = [(configuration(run.header.method, run.header.config.method_options), trace) for run, trace in runs]
    first, _ = runs[0]
    header = first.header
    return ModelTraces(
        gflop=_gflop(first), parameters=header.parameters, batch_size=header.batch_size,
        nodes=header.nodes, traces={label: trace for label, trace in labelled if label},
    )  # fmt: skip


def label_of(figure: SpeedUpFigure, subject: Subject) -> str:
    """The configuration of `figure`, as traces are named."""
    options = {"split_params": 0, **subject.request.method_options}
    return configuration(figure.method, options) or figure.method


def _replayed_row(figure: SpeedUpFigure, subject: Subject, over_seeds: Sequence[Gains]) -> Compared:
    label = label_of(figure, subject)
    trained = [gains for gains in over_seeds if label in gains.seconds]
    if not trained:
        return _row(figure, subject, label, None, "not trained", 0)
    gains_at = [gains.largest(label) for gains in trained]
    largest = seed_median([1 + gain for gain, _ in gains_at])
    at = " or ".join(f"{bandwidth:g}" for bandwidth in sorted({bandwidth for _, bandwidth in gains_at}))
    if figure.gbit_s is None:
        ours, text = largest, f"{number(largest.median)}, the largest, at {at} Gbit/s"
    else:
        ours = seed_median([1 + gains.gain(label, figure.gbit_s) for gains in trained])
        text = f"{number(ours.median)}; largest {number(largest.median)} at {at} Gbit/s"
    aspects = ("bandwidth",) if figure.gbit_s is None else ()
    return _row(figure, subject, label, ours, text, len(trained), aspects=aspects)


def _row(
    figure: SpeedUpFigure,
    subject: Subject,
    method: str,
    ours: SeedMedian | None,
    text: str,
    trained: int,
    **fields: Any,
) -> Compared:
    bandwidth = "bandwidth not given" if figure.gbit_s is None else f"{figure.gbit_s:g} Gbit/s"
    return row_of(
        figure,
        subject,
        method=method,
        network=network_words(figure) or figure.workload,
        what=f"times the samples/s of {figure.over}, {bandwidth}",
        published=figure.speedup,
        published_text="no number" if figure.speedup is None else number(figure.speedup),
        ours=ours,
        ours_text=text,
        trained=trained,
        reached=trained,
        spread_text=range_text(ours),
        **fields,
    )


def _estimate_notes(recorded: Mapping[str, ModelTraces]) -> Iterable[str]:
    if not recorded:
        return
    batches = ", ".join(f"{one.batch_size} of {MODELS[name].title}" for name, one in recorded.items())
    yield (
        f"The GPU's speed is an estimate: {PEAK_GFLOPS / 1000:g} TFLOP/s x a share of the peak, over the counted "
        f"operations of a sample. A step has {BATCH} samples a node; recorded were {batches}. The shares come from "
        "public measurements of a GTX 1080 (VGG-19 75 %, ResNet-50 28 %). Other networks take that of ResNet-50."
    )
    yield (
        f"Links carry {100 * PAYLOAD:.1f} % of their rate as payload, and take 50 µs to the other node. A message "
        f"holds its connection for {ESTIMATED.overhead_s * 1e6:g} µs before its bytes flow, an estimate too."
    )
    if "vgg19" in recorded:
        one = recorded["vgg19"]
        sending = number(volume_bits(one.parameters, one.nodes) / (PAYLOAD * 1e9 * 15))
        yield (
            f"VGG-19: a link needs {sending} s a step at 15 Gbit/s, and a node computes "
            f"{number(one.step_seconds(MODELS['vgg19']))} s. At no speed of the GPU can the links give the "
            "published 1.66, so the paper's baseline spends time that the replay does not have."
        )
    if "translation" in recorded:
        yield (
            "Translation: made-up sentences of 20 words, a vocabulary of 16,000. The source embedding is a sixth "
            "of the parameters; its gradient is the last one, and the forward pass needs it first."
        )
