"""Replay errors as a scatter plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from istbench.base.errors import printable
from istbench.base.units import parse_bandwidth
from istbench.report.output.figure import write_figure
from istbench.report.palette import method_styles
from istbench.studies.validation.measurement import ReplayError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = (6.4, 4.2)
_WANTED, _LEAST_RANGE = 10.0, 14.0
_DODGE = 0.16


def draw_errors(errors: Sequence[ReplayError], title: str, stem: Path) -> list[Path]:
    """Error in percent by bandwidth, a point a repeat, as `stem`.png and `stem`.svg; returns both paths.

    Raises:
        OSError: if they cannot be written.
    """
    return write_figure(lambda figure: _fill(figure, errors, title), stem)


def _fill(figure: "Figure", errors: Sequence[ReplayError], title: str) -> None:
    figure.set_size_inches(*_INCHES)
    area = figure.add_subplot()
    area.axhspan(-_WANTED, _WANTED, color="0.94", zorder=0)
    area.axhline(0, color="0.5", linewidth=0.9, zorder=1)
    bandwidths = sorted({error.bandwidth for error in errors}, key=parse_bandwidth)
    styles = method_styles({(error.method, error.method) for error in errors})
    for order, (method, style) in enumerate(styles.items()):
        own = [error for error in errors if error.method == method]
        shift = _DODGE * (order - (len(styles) - 1) / 2)
        places = [bandwidths.index(error.bandwidth) + shift for error in own]
        percent = [100 * error.error for error in own]
        area.scatter(
            places, percent, color=style.colour, marker=style.marker, s=42, alpha=0.85, label=printable(method)
        )
    reach = max(_LEAST_RANGE, 1.15 * max(abs(100 * error.error) for error in errors))
    area.set_ylim(-reach, reach)
    area.set_xlim(-0.5, len(bandwidths) - 0.5)
    area.set_xticks(range(len(bandwidths)), bandwidths)
    area.set_xlabel("bandwidth of a link")
    area.set_ylabel("replayed over measured, less one (%)")
    area.grid(axis="y", alpha=0.25)
    area.spines[["top", "right"]].set_visible(False)
    figure.suptitle(printable(title), fontsize="large", fontweight="bold")
    area.set_title(printable("; ".join(sorted({error.data for error in errors}))), fontsize="small")
    figure.legend(
        loc="outside lower center", ncols=4, frameon=False, title="a point a repeat; grey: within 10 %",
        title_fontsize="small",
    )  # fmt: skip
