"""P3's gains on estimated GPUs: by bandwidth, by slice size, and for other estimates of the GPU.

    istbench reproduce p3 --out RESULTS                                 # about half an hour on two cores, 14 GB
    istbench compare configs/light/p3-slices.toml --out RESULTS         # 20 minutes more: the slice sizes
    python scripts/bench/gpu_gains.py RESULTS results/paper-p3
    python scripts/bench/gpu_gains.py RESULTS TARGET --short            # to try it
    python scripts/bench/gpu_gains.py results/paper-p3/gains.csv results/paper-p3       # ratio.* alone, no replay

`istbench reproduce p3` puts the largest gain of each configuration beside the published one. This program replays
the same traces, of the first seed, with every bandwidth and setting. Writes tables.md and the pictures, also those
over the ratio of sending to computing. From a gains.csv, which has replayed seconds, it makes these and ratio.csv.
"""

import argparse
import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sending_ratio import ratio_curve, ratio_plots, ratio_tables

from istbench.cluster.trace import COMPUTE, Trace
from istbench.cluster.trace_file import load_trace
from istbench.report.output.formats import table_markdown
from istbench.report.output.pictures import draw_plots
from istbench.report.palette import MethodStyle, method_styles
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.report.tables.numbers import number
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, table_of
from istbench.results.load import Run, load_runs
from istbench.studies.reproduce.cells import Overrides, subjects_of
from istbench.studies.reproduce.figures import SpeedUpFigure
from istbench.studies.reproduce.gains import (
    BANDWIDTHS,
    BASELINE,
    BATCH,
    ESTIMATED,
    MODELS,
    P3,
    PAYLOAD,
    PRIORITY,
    SLICING,
    WHOLE,
    Gains,
    GpuSetting,
    ModelTraces,
    label_of,
    network_of,
    published_beside,
    read_by_seed,
    replayed,
    seconds_a_step,
    steps_of,
    volume_bits,
)
from istbench.studies.reproduce.paper import Subject
from istbench.studies.reproduce.papers import PAPERS

EXTENT = PAPERS["p3"].experiments[0].at["laptop"]
SOURCE = "P3 (arXiv 1905.03960)"
_SHOWN = (1, 2, 4, 8, 15, 30)  # Gbit/s
_SETTINGS = (
    ESTIMATED,
    GpuSetting(0.5, 20e-6),
    GpuSetting(2.0, 20e-6),
    GpuSetting(1.0, 0.0),
    GpuSetting(1.0, 50e-6),
)
_SWEPT = {"resnet50": (1, 2.5), "vgg19": (4, 8)}  # Gbit/s: with a large possible gain, and a smaller one
_ORDER = (P3, SLICING, PRIORITY)
_RATIO_COLUMNS = ("model", "gpu_speed", "overhead_us", "configuration", "gbit_s", "ratio", "gain_over_baseline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results directory of `istbench reproduce p3`, or a gains.csv")
    parser.add_argument("target", type=Path, help="folder of the tables and pictures")
    parser.add_argument("--short", action="store_true", help="two bandwidths and two settings alone")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    if arguments.results.is_file():
        text = redraw(arguments.results, arguments.target)
    else:
        runs = [run for run in load_runs(arguments.results)[0] if run.done]
        bandwidths, settings = ((4.0, 15.0), _SETTINGS[1:2]) if arguments.short else (BANDWIDTHS, _SETTINGS[1:])
        tables, plots = study(runs, bandwidths, settings)
        text = "\n".join(table_markdown(table) for table in tables)
        (arguments.target / "tables.md").write_text(text)
        draw_plots(plots, arguments.target)
    print(text)


def redraw(path: Path, target: Path) -> str:
    """Write ratio.csv and the picture of the replayed seconds in `path` into `target`; returns the tables."""
    subjects = subjects_of(EXTENT, Overrides(), (), ())
    pairs = published_beside((SOURCE,), subjects)
    parameters = {
        name: parameters_of(one) for name, one in {network_of(one.request): one for one in subjects}.items()
    }
    curves = {
        (name, setting): ratio_curve(name, parameters[name], found, pairs)
        for (name, setting), found in read_gains(path).items()
    }
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_RATIO_COLUMNS)
    for (name, setting), curve in curves.items():
        for label, gains in curve.gains.items():
            for gbit_s, gain in gains.items():
                ratio = f"{curve.ratio(gbit_s):.4f}"
                about = (name, setting.speed, f"{setting.overhead_s * 1e6:g}", label)
                writer.writerow((*about, f"{gbit_s:g}", ratio, f"{gain:.4f}"))
    (target / "ratio.csv").write_text(out.getvalue())
    estimated = [curve for (_, setting), curve in curves.items() if setting == ESTIMATED]
    draw_plots(ratio_plots(estimated), target)
    return "\n".join(table_markdown(table) for table in ratio_tables(estimated))


def read_gains(path: Path) -> dict[tuple[str, GpuSetting], Gains]:
    """The replayed seconds in a gains.csv, by network and setting."""
    found: dict[tuple[str, GpuSetting], Gains] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            setting = GpuSetting(float(row["gpu_speed"]), float(row["overhead_us"]) / 1e6)
            gains = found.setdefault(
                (row["model"], setting), Gains(compute=float(row["compute_s"]), nodes=4, seconds={})
            )
            gains.seconds.setdefault(row["configuration"], {})[float(row["gbit_s"])] = float(row["step_s"])
    return found


def parameters_of(subject: Subject) -> int:
    """The number of parameters of the network of `subject`, counted without storage."""
    import torch

    from istbench.node.registry import build_workload

    workload = build_workload(subject.request.workload, subject.request.workload_options, ())
    workload.open(workload.prepare(None, Path(), lambda *_: None))
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in workload.build_model().parameters())


def study(
    runs: Sequence[Run], bandwidths: Sequence[float], settings: Sequence[GpuSetting]
) -> tuple[tuple[Table, ...], tuple[Plot, ...]]:
    """The tables and pictures of the finished `runs`; none without a run of the baseline.

    bandwidths: of the links, Gbit/s. settings: estimates of the GPU and of the cost of a message, beside ours.
    """
    subjects = subjects_of(EXTENT, Overrides(), runs, ())
    recorded = {name: records[0] for name, records in read_by_seed(subjects)[0].items()}
    if not recorded:
        return (), ()
    pairs = published_beside((SOURCE,), subjects)
    gains = {
        (name, setting): replayed(name, one, setting, bandwidths if setting == ESTIMATED else shown(bandwidths))
        for name, one in recorded.items()
        for setting in (ESTIMATED, *settings)
    }
    estimated = {name: gains[name, ESTIMATED] for name in recorded}
    sweeps = {
        name: swept(name, one, traces, _SWEPT[name])
        for name, one in recorded.items()
        if name in _SWEPT and len(traces := slice_traces(name, runs)) > 2
    }
    curves = [ratio_curve(name, recorded[name].parameters, found, pairs) for name, found in estimated.items()]
    tables = (*_tables(recorded, estimated, sweeps, gains, pairs), *ratio_tables(curves))
    return tables, (*_plots(estimated, sweeps, pairs), *ratio_plots(curves))


def shown(bandwidths: Sequence[float]) -> list[float]:
    """Those of `bandwidths` that tables have."""
    return [bandwidth for bandwidth in _SHOWN if bandwidth in bandwidths]


def slice_traces(name: str, runs: Sequence[Run]) -> dict[int, Trace]:
    """The traces of p3 on the network `name`, by slice size."""
    found = {
        run.header.config.method_options["slice_params"]: load_trace(run.directory.trace)
        for run in runs
        if run.header.method == "p3"
        and network_of(run.header.config) == name
        and run.header.config.method_options.get("priority")
    }
    return {size: found[size] for size in sorted(found) if size}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Seconds a step of p3 by Gbit/s and slice size, and of the baseline by Gbit/s."""

    seconds: dict[float, dict[int, float]]
    baseline: dict[float, float]

    def gain(self, bandwidth: float, slice_params: int) -> float:
        """The gain in samples per second of p3 over the baseline, as a share."""
        return self.baseline[bandwidth] / self.seconds[bandwidth][slice_params] - 1


def swept(name: str, recorded: ModelTraces, traces: Mapping[int, Trace], bandwidths: Sequence[float]) -> Sweep:
    """Seconds per step of p3 by bandwidth (Gbit/s) and slice size, and of the baseline by bandwidth."""
    compute = recorded.step_seconds(MODELS[name])

    def seconds(trace: Trace, bandwidth: float) -> float:
        return seconds_a_step(trace, ESTIMATED, bandwidth, compute)

    return Sweep(
        seconds={b: {size: seconds(trace, b) for size, trace in traces.items()} for b in bandwidths},
        baseline={b: seconds(recorded.traces[BASELINE], b) for b in bandwidths},
    )


def update_seconds(trace: Trace) -> float:
    """Seconds of one recording core that a node's server works in a step, the median of steps."""
    steps = [step for events in trace.nodes for step in steps_of(events)]
    return float(np.median([step["seconds"][step["code"] != COMPUTE].sum() for step in steps]))


def _tables(
    recorded: Mapping[str, ModelTraces],
    estimated: Mapping[str, Gains],
    sweeps: Mapping[str, Sweep],
    gains: Mapping[tuple[str, GpuSetting], Gains],
    pairs: Sequence[tuple[SpeedUpFigure, Subject]],
) -> tuple[Table, ...]:
    tables = [_by_bandwidth(estimated), _speeds(recorded)]
    if sweeps:
        tables.insert(1, _by_slice(sweeps))
    settings = _by_setting(gains, pairs)
    if settings.rows:
        tables.append(settings)
    return tuple(tables)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A row of numbers by column; None for a gap."""

    names: tuple[str, ...]
    values: tuple[float | None, ...]


def _line_table(title: str, names: Sequence[str], columns: Sequence[str], lines: Sequence[_Line]) -> Table:
    """A table of `lines`. names: titles of the naming columns. columns: those of the numbers."""

    def named(place: int) -> ColumnOf[_Line]:
        title = names[place]
        return ColumnOf(
            key=title.replace(" ", "_"), title=title, align="left", entry=lambda line: line.names[place]
        )

    def valued(place: int) -> ColumnOf[_Line]:
        title = columns[place]
        return ColumnOf(key=title.replace(" ", "_"), title=title, entry=lambda line: _entry(line.values[place]))

    return table_of(
        [*(named(place) for place in range(len(names))), *(valued(place) for place in range(len(columns)))],
        lines,
        title=title,
        keys=len(names),
    )


def _entry(value: float | None) -> Entry:
    return NOTHING if value is None else Entry(text=number(value), value=value)


def _by_bandwidth(gains: Mapping[str, Gains]) -> Table:
    lines = []
    for name, found in gains.items():
        shown = [bandwidth for bandwidth in _SHOWN if bandwidth in found.seconds[BASELINE]]
        for label in (label for label in _ORDER if label in found.seconds):
            values = tuple(1 + found.gain(label, bandwidth) for bandwidth in shown)
            lines.append(_Line(names=(MODELS[name].title, label), values=values))
        if {WHOLE, P3} <= found.seconds.keys():
            values = tuple(1 + found.gain(P3, bandwidth, WHOLE) for bandwidth in shown)
            lines.append(_Line(names=(MODELS[name].title, "p3, over whole tensors"), values=values))
        samples = tuple(found.nodes * BATCH / found.seconds[BASELINE][bandwidth] for bandwidth in shown)
        label = f"baseline, {MODELS[name].samples}/s of all nodes"
        lines.append(_Line(names=(MODELS[name].title, label), values=samples))
    columns = [f"{bandwidth:g} Gbit/s" for bandwidth in shown]
    table = _line_table(
        "Times the samples/s of the parameter server, by bandwidth", ["model", "method"], columns, lines
    )
    return dataclasses.replace(
        table,
        footer=(
            "The baseline splits tensors of over a million parameters over all servers, as MXNet's does. Over "
            "whole tensors: over parameter_server with its default options; one server holds a whole tensor.",
            "The baseline hides its sending behind the backward pass, about two thirds of the computing. p3 hides "
            "it behind the forward pass too. Where sending takes as long as computing, a third more is possible.",
        ),
    )


def _by_slice(sweeps: Mapping[str, Sweep]) -> Table:
    sizes = sorted({size for sweep in sweeps.values() for steps in sweep.seconds.values() for size in steps})
    lines = [
        _Line(
            names=(MODELS[name].title, f"{bandwidth:g}"),
            values=tuple(1 + sweep.gain(bandwidth, size) if size in steps else None for size in sizes),
        )
        for name, sweep in sweeps.items()
        for bandwidth, steps in sweep.seconds.items()
    ]
    table = _line_table(
        "Times the samples/s of the parameter server, by slice_params of p3", ["model", "Gbit/s"],
        [f"{size:,}" for size in sizes], lines,
    )  # fmt: skip
    return dataclasses.replace(table, footer=("Published: 50,000 parameters are the best slice.",))


def _speeds(recorded: Mapping[str, ModelTraces]) -> Table:
    lines = []
    for name, one in recorded.items():
        model = MODELS[name]
        compute, seconds = one.step_seconds(model), volume_bits(one.parameters, one.nodes) / (PAYLOAD * 1e9)
        updates = [update_seconds(one.traces[label]) if label in one.traces else None for label in (BASELINE, P3)]
        values = (
            one.parameters / 1e6, one.gflop, 100 * model.utilisation, BATCH / compute, compute, seconds,
            seconds / compute, *updates,
        )  # fmt: skip
        lines.append(_Line(names=(model.title,), values=values))
    columns = [
        "million parameters", "GFLOP a sample", "% of the peak", "samples/s a node", "computing s a step",
        "sending s a step at 1 Gbit/s", "Gbit/s where both are equal", "server s a step, baseline",
        "server s a step, p3",
    ]  # fmt: skip
    return _line_table("The GPU's speed, an estimate", ["model"], columns, lines)


def _by_setting(
    gains: Mapping[tuple[str, GpuSetting], Gains], pairs: Sequence[tuple[SpeedUpFigure, Subject]]
) -> Table:
    lines = []
    for figure, one in pairs:
        for (name, setting), found in gains.items():
            label = label_of(figure, one)
            if name != network_of(one.request) or label not in found.seconds:
                continue
            largest, at = found.largest(label)
            here = None if figure.gbit_s is None else 1 + found.gain(label, figure.gbit_s)
            names = (MODELS[name].title, label, f"{setting.speed:g}x", f"{setting.overhead_s * 1e6:g}")
            lines.append(_Line(names=names, values=(figure.gbit_s, figure.speedup, here, 1 + largest, at)))
    return _line_table(
        "If the estimates are off",
        ["model", "method", "GPU's speed", "µs a message"],
        ["Gbit/s", "published", "replayed", "largest", "largest at Gbit/s"],
        lines,
    )


def _plots(
    gains: Mapping[str, Gains], sweeps: Mapping[str, Sweep], pairs: Sequence[tuple[SpeedUpFigure, Subject]]
) -> Iterable[Plot]:
    if gains:
        styles = method_styles({("p3", label) for label in _ORDER})
        star = MethodStyle(colour="#333333", line=":", marker="*")
        panels = []
        for name, found in gains.items():
            series = [
                _series(label, styles[label], {b: 1 + found.gain(label, b) for b in found.seconds[label]})
                for label in _ORDER
                if label in found.seconds
            ]
            stars = {
                figure.gbit_s: figure.speedup
                for figure, one in pairs
                if network_of(one.request) == name and figure.gbit_s is not None and figure.speedup is not None
            }
            if stars:
                series.append(_series("published", star, dict(sorted(stars.items()))))
            panels.append(Panel(title=MODELS[name].title, series=tuple(series), levels=(1.0,), level_names=("1",)))
        yield Plot(
            stem="gains",
            title="P3 on nodes with a P4000: replayed and published speed-ups",
            subtitle="over the parameter server, in samples a second",
            kind="lines",
            x_label="bandwidth of a node's link, Gbit/s",
            y_label="times the baseline's samples/s",
            x_scale="log",
            panels=tuple(panels),
        )
    if sweeps:
        styles = method_styles({("p3", f"{b:g} Gbit/s") for sweep in sweeps.values() for b in sweep.seconds})
        yield Plot(
            stem="slices",
            title="P3 by slice size, replayed on nodes with a P4000",
            subtitle="over the parameter server, in samples a second",
            kind="lines",
            x_label="parameters of a slice, at most",
            y_label="times the baseline's samples/s",
            x_scale="log",
            panels=tuple(
                Panel(
                    title=MODELS[name].title,
                    series=tuple(
                        _series(
                            f"{b:g} Gbit/s",
                            styles[f"{b:g} Gbit/s"],
                            {size: 1 + sweep.gain(b, size) for size in steps},
                        )
                        for b, steps in sweep.seconds.items()
                    ),
                )
                for name, sweep in sweeps.items()
            ),
        )


def _series(label: str, style: MethodStyle, points: Mapping[float, float]) -> Series:
    x, y = tuple(points), tuple(points.values())
    return Series(label=label, style=style, x=x, y=y, low=y, high=y)


if __name__ == "__main__":
    main()
