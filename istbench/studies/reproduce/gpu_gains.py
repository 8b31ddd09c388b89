"""P3's gains in samples a second, replayed on the paper's GPUs, beside the published ones."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from istbench.report.palette import MethodStyle, method_styles
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.report.published import SpeedUpFigure, read_speed_ups
from istbench.report.tables.numbers import NOTHING, number, plain
from istbench.report.tables.table import ColumnOf, Entry, Table, fill
from istbench.results.stats import estimate
from istbench.studies.reproduce.curves import node_differences
from istbench.studies.reproduce.gpu_replays import (
    BASELINE,
    BATCH,
    ESTIMATED,
    MODELS,
    P3,
    PAYLOAD,
    PEAK_GFLOPS,
    PRIORITY,
    SLICING,
    WHOLE,
    Gains,
    Recorded,
    Setting,
    Sweep,
    configuration,
    read,
    replayed,
    swept,
    update_seconds,
)
from istbench.studies.reproduce.matching import has, is_of, network_words, nodes_differ
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Comparison, Difference, Subject
from istbench.studies.reproduce.values import range_text

_BANDWIDTHS = (1, 1.5, 2, 2.5, 3, 4, 6, 8, 10, 12, 15, 20, 30)  # Gbit/s
_SHOWN = (1, 2, 4, 8, 15, 30)
_SETTINGS = (ESTIMATED, Setting(0.5, 20e-6), Setting(2.0, 20e-6), Setting(1.0, 0.0), Setting(1.0, 50e-6))
_SWEPT = {"resnet50": (1, 2.5), "vgg19": (4, 8)}  # Gbit/s: with a large possible gain, and a smaller one
_ORDER = (P3, SLICING, PRIORITY)


@dataclass(frozen=True, kw_only=True)
class GpuGains:
    """P3's speed-ups over the parameter server, replayed on machines with one Quadro P4000 each.

    Traces recorded here have their computing stretched to an estimate of that GPU. Nothing is fitted.

    Attributes:
        source: name of the paper. bandwidths: of the links, Gbit/s. settings: estimates of the GPU and of the cost
            of a message; the first one is ours, the others show how much they matter.
        sweeps: bandwidths of the table of slice sizes, Gbit/s, by model.
    """

    source: str
    bandwidths: tuple[float, ...] = _BANDWIDTHS
    settings: tuple[Setting, ...] = _SETTINGS
    sweeps: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: _SWEPT)

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        by_seed, problems = _read_by_seed(subjects)
        recorded = {name: records[0] for name, records in by_seed.items()}
        figures = [one for one in read_speed_ups(PUBLISHED / "speedups.csv") if one.paper == self.source]
        gains = {
            (name, setting): replayed(name, one, setting, self.bandwidths if setting == ESTIMATED else _SHOWN)
            for name, one in recorded.items()
            for setting in self.settings
        }
        estimated = {name: gains[name, ESTIMATED] for name in recorded}
        over_seeds = {
            name: [estimated[name], *(replayed(name, one, ESTIMATED, self.bandwidths) for one in records[1:])]
            for name, records in by_seed.items()
        }
        sweeps = {
            name: swept(name, recorded[name], bandwidths)
            for name, bandwidths in self.sweeps.items()
            if name in recorded and len(recorded[name].sweep) > 2
        }
        pairs = [
            (figure, one)
            for figure in figures
            for one in subjects
            if one.request.method == figure.method
            and is_of(figure, one)
            and has(one.request.method_options, figure.method_options)
        ]
        tables = _tables(recorded, estimated, sweeps, gains, pairs) if recorded else ()
        return Comparison(
            rows=tuple(_row(figure, one, over_seeds.get(_model(one), [])) for figure, one in pairs),
            notes=(
                *_estimate_notes(recorded),
                *(
                    ["The further tables have the first seed alone."]
                    if any(len(records) > 1 for records in by_seed.values())
                    else []
                ),
                *dict.fromkeys(f"Published: {figure.note}." for figure, _ in pairs if figure.note),
            ),
            tables=tables,
            plots=tuple(_plots(estimated, sweeps, pairs)),
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


def _read_by_seed(subjects: Sequence[Subject]) -> tuple[dict[str, list[Recorded]], list[str]]:
    """The records of each model, one a seed that has the baseline, and a line for each unreadable trace."""
    found: dict[str, list[Recorded]] = {}
    problems: list[str] = []
    for seed in sorted({run.header.seed for subject in subjects for run in subject.runs}):
        records, unreadable = read(run for subject in subjects for run in subject.runs if run.header.seed == seed)
        problems += unreadable
        for name, one in records.items():
            if BASELINE in one.traces:
                found.setdefault(name, []).append(one)
    return found, problems


def _model(subject: Subject) -> str:
    return str(subject.request.workload_options.get("model", subject.request.workload))


def _label(figure: SpeedUpFigure, subject: Subject) -> str:
    """The configuration of `figure`, as traces are named."""
    options = {"split_params": 0, **subject.request.method_options}
    return configuration(figure.method, options) or figure.method


def _row(figure: SpeedUpFigure, subject: Subject, over_seeds: Sequence[Gains]) -> Compared:
    label = _label(figure, subject)
    ours, text, aspects = None, "not trained", tuple[str, ...]()
    trained = [gains for gains in over_seeds if label in gains.seconds]
    if trained:
        gains_at = [gains.largest(label) for gains in trained]
        largest = estimate([1 + gain for gain, _ in gains_at])
        at = " or ".join(f"{bandwidth:g}" for bandwidth in sorted({bandwidth for _, bandwidth in gains_at}))
        if figure.gbit_s is None:
            ours = largest
            text, aspects = f"{number(largest.median)}, the largest, at {at} Gbit/s", ("bandwidth",)
        else:
            gbit_s = figure.gbit_s
            ours = estimate([1 + gains.gain(label, gbit_s) for gains in trained])
            text = f"{number(ours.median)}; largest {number(largest.median)} at {at} Gbit/s"
    bandwidth = "bandwidth not given" if figure.gbit_s is None else f"{figure.gbit_s:g} Gbit/s"
    return Compared(
        method=label,
        network=network_words(figure) or figure.workload,
        nodes=subject.request.nodes,
        what=f"times the samples/s of {figure.over}, {bandwidth}",
        published=figure.speedup,
        published_text="no number" if figure.speedup is None else number(figure.speedup),
        ours=ours,
        ours_text=text,
        planned=subject.seeds,
        trained=len(trained),
        reached=len(trained),
        spread_text=range_text(ours),
        aspects=(*aspects, *nodes_differ(figure, subject)),
    )


def _estimate_notes(recorded: Mapping[str, Recorded]) -> Iterable[str]:
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
        sending = number(one.volume_bits / (PAYLOAD * 1e9 * 15))
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


def _tables(
    recorded: Mapping[str, Recorded],
    estimated: Mapping[str, Gains],
    sweeps: Mapping[str, Sweep],
    gains: Mapping[tuple[str, Setting], Gains],
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
            key=title.replace(" ", "_"), title=title, align="left", entry=lambda line: plain(line.names[place])
        )

    def valued(place: int) -> ColumnOf[_Line]:
        title = columns[place]
        return ColumnOf(key=title.replace(" ", "_"), title=title, entry=lambda line: _entry(line.values[place]))

    filled, rows = fill(
        [*(named(place) for place in range(len(names))), *(valued(place) for place in range(len(columns)))], lines
    )
    return Table(title=title, columns=filled, rows=rows, keys=len(names))


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


def _speeds(recorded: Mapping[str, Recorded]) -> Table:
    lines = []
    for name, one in recorded.items():
        model = MODELS[name]
        compute, seconds = one.step_seconds(model), one.volume_bits / (PAYLOAD * 1e9)
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
    gains: Mapping[tuple[str, Setting], Gains], pairs: Sequence[tuple[SpeedUpFigure, Subject]]
) -> Table:
    lines = []
    for figure, one in pairs:
        for (name, setting), found in gains.items():
            label = _label(figure, one)
            if name != _model(one) or label not in found.seconds:
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
                if _model(one) == name and figure.gbit_s is not None and figure.speedup is not None
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
