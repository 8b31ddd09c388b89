"""Gains of P3 over the ratio of sending to computing, an axis that needs no GPU's speed, for `gpu_gains.py`.

The ratio is the seconds of a step in which a link sends, over those in which a node computes. A faster GPU and a
slower link both raise it. A published bandwidth gives the seconds of sending; a ratio then gives the GPU's speed.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from istbench.report.palette import MethodStyle, method_styles
from istbench.report.phrases import Lead
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.report.tables.numbers import number, rounded
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, table_of
from istbench.studies.reproduce.figures import SpeedUpFigure, read_rows
from istbench.studies.reproduce.gains import (
    BATCH,
    MODELS,
    P3,
    PAYLOAD,
    PEAK_GFLOPS,
    PRIORITY,
    SLICING,
    Gains,
    label_of,
    network_of,
    volume_bits,
)
from istbench.studies.reproduce.paper import PUBLISHED, Subject

_RATIOS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_LEAST_DRAWN = 0.2  # below, both methods hide all sending


class GpuRate(msgspec.Struct, frozen=True, kw_only=True):
    """A public measurement of a GPU that trains.

    Attributes:
        peak_gflops: of the GPU, in single precision. step_ms: of a forward and backward pass of `batch_size`
            samples. source: where it was published, with the version.
    """

    gpu: str
    peak_gflops: float
    model: str
    batch_size: int
    step_ms: float
    software: str
    source: str


@dataclass(frozen=True, kw_only=True)
class PublishedGain:
    """A published gain of the configuration `label` as a share. gbit_s: of the links; None if not given."""

    label: str
    gain: float
    gbit_s: float | None


@dataclass(frozen=True, kw_only=True)
class RatioCurve:
    """Replayed gains of one network, as shares, by configuration and Gbit/s.

    Attributes:
        title, samples: of the network, and of what it trains on, for readers.
        sending_s: of a link at 1 Gbit/s. compute_s: of a node, both in a step.
        gflop_per_step: of a node. batch_size: samples of a node's step. peak_gflops: of the GPU, per second.
        published: gains of the paper. rates: public measurements of similar GPUs.
    """

    title: str
    samples: str
    sending_s: float
    compute_s: float
    gflop_per_step: float
    batch_size: int
    peak_gflops: float
    gains: Mapping[str, Mapping[float, float]]
    published: tuple[PublishedGain, ...] = ()
    rates: tuple[GpuRate, ...] = ()

    def ratio(self, gbit_s: float) -> float:
        """Seconds of sending at `gbit_s` over those of computing in the replay."""
        return self.sending_s / gbit_s / self.compute_s

    def points(self, label: str) -> list[tuple[float, float]]:
        """(ratio, gain) of configuration `label`, by ratio."""
        return sorted((self.ratio(gbit_s), gain) for gbit_s, gain in self.gains[label].items())

    def share_of_peak(self, ratio: float, gbit_s: float) -> float:
        """Share of its peak at which the GPU computes, if links of `gbit_s` send for `ratio` times as long."""
        return ratio * self.gflop_per_step / (self.sending_s / gbit_s) / self.peak_gflops

    def samples_per_s(self, share: float) -> float:
        """Samples per second of a node whose GPU computes at `share` of its peak."""
        return share * self.peak_gflops * self.batch_size / self.gflop_per_step


def ratio_curve(
    name: str, parameters: int, gains: Gains, pairs: Iterable[tuple[SpeedUpFigure, Subject]]
) -> RatioCurve:
    """`gains` of the network `name` over the ratio of sending to computing, with its published gains in `pairs`."""
    model = MODELS[name]
    return RatioCurve(
        title=model.title,
        samples=model.samples,
        sending_s=volume_bits(parameters, gains.nodes) / (PAYLOAD * 1e9),
        compute_s=gains.compute,
        gflop_per_step=gains.compute * PEAK_GFLOPS * model.utilisation,
        batch_size=BATCH,
        peak_gflops=PEAK_GFLOPS,
        gains={
            label: {gbit_s: gains.gain(label, gbit_s) for gbit_s in gains.seconds[label]}
            for label in (P3, SLICING, PRIORITY)
            if label in gains.seconds
        },
        published=tuple(
            PublishedGain(label=label_of(figure, one), gain=figure.speedup - 1, gbit_s=figure.gbit_s)
            for figure, one in pairs
            if network_of(one.request) == name and figure.speedup is not None
        ),
        rates=tuple(rate for rate in read_rows(PUBLISHED / "gpu_rates.csv", GpuRate) if rate.model == name),
    )


def gain_at(points: Sequence[tuple[float, float]], ratio: float) -> float | None:
    """The gain at `ratio` on the line through `points`, straight over the logarithm; None outside of them."""
    for (left, low), (right, high) in itertools.pairwise(points):
        if left <= ratio <= right:
            return low + (high - low) * math.log(ratio / left) / math.log(right / left)
    return None


def ratios_of(points: Sequence[tuple[float, float]], gain: float) -> list[float]:
    """Each ratio at which the line through `points` crosses `gain`."""
    found = []
    for (left, low), (right, high) in itertools.pairwise(points):
        if (low < gain) != (high < gain):
            found.append(left * (right / left) ** ((gain - low) / (high - low)))
    return list(dict.fromkeys(found))  # a peak of exactly this gain is crossed once


def nearest_ratios(points: Sequence[tuple[float, float]], gain: float) -> list[float]:
    """Each ratio at which the line through `points` has `gain`, or the one at which it comes nearest."""
    return ratios_of(points, gain) or [min(points, key=lambda point: abs(point[1] - gain))[0]]


def ratio_tables(curves: Sequence[RatioCurve]) -> tuple[Table, ...]:
    """Gains by ratio, the published gains on them, and public measurements of similar GPUs; none without curves."""
    tables = (_by_ratio(curves), _published(curves), _measured(curves)) if curves else ()
    return tuple(table for table in tables if table.rows)


@dataclass(frozen=True)
class _Line:
    """A configuration of a curve, with a published gain of it for some tables."""

    curve: RatioCurve
    label: str
    published: PublishedGain | None = None

    @property
    def points(self) -> list[tuple[float, float]]:
        return self.curve.points(self.label)

    @property
    def largest(self) -> tuple[float, float]:
        """The (ratio, gain) of the largest gain."""
        return max(self.points, key=lambda point: point[1])


_NAMES: tuple[ColumnOf[_Line], ...] = (
    ColumnOf(key="model", title="model", align="left", entry=lambda line: line.curve.title),
    ColumnOf(key="method", title="method", align="left", entry=lambda line: line.label),
)


def _times(gain: float | None) -> Entry:
    return NOTHING if gain is None else rounded(1 + gain)


def _by_ratio(curves: Sequence[RatioCurve]) -> Table:
    def at(ratio: float) -> ColumnOf[_Line]:
        return ColumnOf(
            key=f"at_ratio_{ratio:g}", title=f"{ratio:g}", entry=lambda line: _times(gain_at(line.points, ratio))
        )

    return table_of(
        [
            *_NAMES,
            *map(at, _RATIOS),
            ColumnOf(key="largest", title="largest", entry=lambda line: _times(line.largest[1])),
            ColumnOf(key="largest_at_ratio", title="at ratio", entry=lambda line: rounded(line.largest[0])),
        ],
        [_Line(curve, label) for curve in curves for label in curve.gains],
        title="Times the samples/s of the parameter server, by the ratio of sending to computing",
        keys=len(_NAMES),
        footer=(
            "Ratio: seconds of a step in which a link sends, over those in which a node computes. Between "
            "replayed bandwidths the line is straight over the logarithm of the ratio.",
        ),
    )


def _published(curves: Sequence[RatioCurve]) -> Table:
    lines = [
        _Line(curve, figure.label, figure)
        for curve in curves
        for figure in curve.published
        if figure.label in curve.gains
    ]

    def valued(key: str, title: str, value: str) -> ColumnOf[_Line]:
        return ColumnOf(key=key, title=title, entry=lambda line: _equal_entries(line)[value])

    return table_of(
        [
            *_NAMES,
            ColumnOf(key="gbit_s", title="Gbit/s", entry=lambda line: _equal_entries(line)["gbit_s"]),
            ColumnOf(key="published", title="published", entry=lambda line: _times(_of(line).gain)),
            ColumnOf(key="largest", title="ours, largest", entry=lambda line: _times(line.largest[1])),
            ColumnOf(key="ratio", title="at ratio", align="left", entry=_nearest),
            valued("samples_per_s", "samples/s at ratio 1", "samples"),
            valued("gflops", "GFLOP/s", "gflops"),
            valued("percent_of_peak", "% of the peak", "percent"),
        ],
        lines,
        title="Published gains on the ratio of sending to computing",
        keys=3,
        footer=(
            "At ratio: where ours equals the published gain, else where it comes nearest. The last columns: the "
            "rate of a node if the published gain is at ratio 1, where sending takes as long as computing.",
            *(Lead(_verdict(line)) for line in lines),
        ),
    )


def _of(line: _Line) -> PublishedGain:
    assert line.published is not None  # of the lines of this table
    return line.published


def _equal_entries(line: _Line) -> dict[str, Entry]:
    """What follows from the published bandwidth, if the links send as long as the nodes compute."""
    gbit_s = _of(line).gbit_s
    if gbit_s is None:
        return dict.fromkeys(("gbit_s", "samples", "gflops", "percent"), NOTHING)
    share = line.curve.share_of_peak(1.0, gbit_s)
    return {
        "gbit_s": Entry(text=f"{gbit_s:g}", value=gbit_s),
        "samples": rounded(line.curve.samples_per_s(share)),
        "gflops": rounded(share * line.curve.peak_gflops),
        "percent": rounded(100 * share),
    }


def _nearest(line: _Line) -> Entry:
    ratios = nearest_ratios(line.points, _of(line).gain)
    return Entry(text=" and ".join(map(number, ratios)), value=ratios[0])


def _verdict(line: _Line) -> str:
    """A sentence that says whether the published gain and ours agree, and at which speed of the GPU."""
    curve, figure, (at, largest) = line.curve, _of(line), line.largest
    name = f"{curve.title}, {line.label}"
    ratios = ratios_of(line.points, figure.gain)
    if not ratios:
        text = (
            f"{name}: no agreement at any ratio. Ours is at most {number(1 + largest)}, at ratio "
            f"{number(at)}; published is {number(1 + figure.gain)}."
        )
        if figure.gbit_s is None:
            return text
        share = curve.share_of_peak(1.0, figure.gbit_s)
        if share > 1:
            text += (
                f" Nor is theirs at ratio 1: that takes {number(100 * share)} % of the card's peak. At its peak "
                f"the ratio is {number(1 / share)}."
            )
        return text
    if figure.gbit_s is None:
        return f"{name}: ours has the published gain at ratio {' and '.join(map(number, ratios))}."
    shares = [curve.share_of_peak(ratio, figure.gbit_s) for ratio in ratios]
    rates = " or ".join(
        f"{number(curve.samples_per_s(share))} {curve.samples}/s ({number(100 * share)} % of its peak)"
        for share in shares
    )
    agree = "agreement" if min(shares) <= 1 else "no agreement below the card's peak"
    return (
        f"{name}: {agree}, if the card trains {rates}, at ratio {' or '.join(map(number, ratios))}; the estimate "
        f"is {number(curve.batch_size / curve.compute_s)} {curve.samples}/s."
    )


@dataclass(frozen=True)
class _Rate:
    """A measured rate of a similar GPU beside a curve, and a published gain with a bandwidth if there is one."""

    curve: RatioCurve
    rate: GpuRate
    published: PublishedGain | None

    @property
    def per_s(self) -> float:
        return 1000 * self.rate.batch_size / self.rate.step_ms

    @property
    def share(self) -> float:
        """Of the peak of the measured GPU, by counted operations."""
        return self.per_s * self.curve.gflop_per_step / self.curve.batch_size / self.rate.peak_gflops

    @property
    def ratio(self) -> float | None:
        """At the published bandwidth, if the paper's GPU computes at the same share of its peak."""
        if self.published is None or self.published.gbit_s is None:
            return None
        return self.share / self.curve.share_of_peak(1.0, self.published.gbit_s)

    @property
    def gain(self) -> float | None:
        """Ours at that ratio."""
        if self.published is None or self.ratio is None or self.published.label not in self.curve.gains:
            return None
        return gain_at(self.curve.points(self.published.label), self.ratio)


_RATE_COLUMNS: tuple[ColumnOf[_Rate], ...] = (
    ColumnOf(key="model", title="model", align="left", entry=lambda one: one.curve.title),
    ColumnOf(key="gpu", title="GPU", align="left", entry=lambda one: one.rate.gpu),
    ColumnOf(key="software", title="software", align="left", entry=lambda one: one.rate.software),
    ColumnOf(key="measured_per_s", title="measured samples/s", entry=lambda one: rounded(one.per_s)),
    ColumnOf(key="percent_of_its_peak", title="% of its peak", entry=lambda one: rounded(100 * one.share)),
    ColumnOf(
        key="scaled_per_s",
        title="samples/s of the card, by peak",
        entry=lambda one: rounded(one.curve.samples_per_s(one.share)),
    ),
    ColumnOf(key="ratio", title="ratio at the published Gbit/s", entry=lambda one: rounded(one.ratio)),
    ColumnOf(key="ours", title="ours there", entry=lambda one: _times(one.gain)),
    ColumnOf(
        key="published",
        title="published",
        entry=lambda one: _times(one.published.gain if one.published else None),
    ),
    ColumnOf(key="source", title="source", align="left", entry=lambda one: one.rate.source),
)


def _measured(curves: Sequence[RatioCurve]) -> Table:
    lines = [
        _Rate(curve, rate, next((one for one in curve.published if one.gbit_s is not None), None))
        for curve in curves
        for rate in curve.rates
    ]
    return table_of(
        _RATE_COLUMNS,
        lines,
        title="Public measurements of similar GPUs",
        keys=3,
        footer=(
            "Forward and backward pass, single precision. Operations are the multiplications and additions of a "
            "plain convolution; cuDNN's Winograd convolution needs fewer, so a share can exceed 100 %.",
            "By peak: the rate of the paper's GPU at the same share of its peak. Ours and published are of p3.",
        ),
    )


def ratio_plots(curves: Sequence[RatioCurve]) -> Iterable[Plot]:
    """The gain over the ratio, a panel a network; none without curves.

    A published gain is a line from the ratio of the estimated GPU to that of the GPU at its peak.
    """
    if not curves:
        return
    labels = dict.fromkeys(label for curve in curves for label in curve.gains)
    styles = method_styles({("p3", label) for label in labels})
    yield Plot(
        stem="ratio",
        title="P3 by the ratio of sending to computing: replayed and published speed-ups",
        subtitle="over the parameter server, in samples a second; a published one spans the speeds of a P4000 from "
        "our estimate to its peak",
        kind="lines",
        x_label="seconds of sending / seconds of computing",
        y_label="times the baseline's samples/s",
        x_scale="log",
        panels=tuple(
            Panel(
                title=curve.title,
                series=(
                    *(_series(label, styles[label], _drawn(curve.points(label))) for label in curve.gains),
                    *_published_series(curve),
                ),
                levels=(1.0, *(1 + figure.gain for figure in curve.published if figure.gbit_s is None)),
                level_names=("1", *("published" for figure in curve.published if figure.gbit_s is None)),
            )
            for curve in curves
        ),
    )


def _drawn(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(ratio, 1 + gain) for ratio, gain in points if ratio >= _LEAST_DRAWN]


_STARS = {"p3": MethodStyle(colour="#333333", line="-", marker="*")}
_OTHER_STAR = MethodStyle(colour="#333333", line=":", marker="P")


def _published_series(curve: RatioCurve) -> Iterable[Series]:
    for figure in curve.published:
        if figure.gbit_s is None:
            continue
        estimated = curve.ratio(figure.gbit_s)
        at_peak = 1 / curve.share_of_peak(1.0, figure.gbit_s)
        # A line's first point has no marker, so it stands twice.
        points = [(estimated, figure.gain), (estimated, figure.gain), (at_peak, figure.gain)]
        yield _series(f"published {figure.label}", _STARS.get(figure.label, _OTHER_STAR), _drawn(points))


def _series(label: str, style: MethodStyle, points: Sequence[tuple[float, float]]) -> Series:
    x, y = tuple(ratio for ratio, _ in points), tuple(times for _, times in points)
    return Series(label=label, style=style, x=x, y=y, low=y, high=y)
