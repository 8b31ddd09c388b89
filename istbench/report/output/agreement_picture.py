"""Predicted against measured seconds, as a picture."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from istbench.report.output.figure import write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"))
"""Colours that colour-blind readers tell apart, with markers."""
_TWICE = 2


def draw_agreement(points: Mapping[str, Sequence[tuple[float, float]]], stem: Path) -> list[Path]:
    """Write `points` (measured and predicted seconds by class) to `stem` as PNG and SVG; returns the paths.

    Raises:
        UserError: if they cannot be written.
    """
    return write_figure(partial(_fill, points), stem)


def _fill(points: Mapping[str, Sequence[tuple[float, float]]], figure: "Figure") -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure.set_size_inches(7.2, 4.6)
    area = figure.subplots()
    every = [seconds for pairs in points.values() for pair in pairs for seconds in pair]
    ends = [min(every) / _TWICE, max(every) * _TWICE]
    area.plot(ends, ends, color="0.5", linewidth=1)
    area.fill_between(ends, [end / _TWICE for end in ends], [end * _TWICE for end in ends], color="0.93")
    for (name, pairs), (colour, marker) in zip(points.items(), _LOOKS, strict=False):
        measured, predicted = zip(*pairs, strict=True)
        area.plot(measured, predicted, marker, color=colour, markersize=6, markerfacecolor="none", label=name)
    area.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (area.xaxis, area.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    area.set_xlabel("measured by others, seconds of a step")
    area.set_ylabel("predicted, seconds of a step")
    area.spines[["top", "right"]].set_visible(False)
    area.grid(alpha=0.2)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle("Other people's measurements, predicted from their numbers", fontweight="bold")
    figure.supxlabel("line: equal; grey: within a factor of 2", fontsize="small")
