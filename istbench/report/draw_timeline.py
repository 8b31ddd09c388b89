"""A timeline as a picture: for each node a lane of what it did, and under it what it sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from istbench.report.draw import write_figure
from istbench.report.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"compute": "#0072B2", "communication": "#E69F00", "idle": "#D9D9D9", "transfer": "#009E73"}
_NAMES = {"compute": "compute", "communication": "waiting for the network", "idle": "waiting for another node",
          "transfer": "sending"}  # fmt: skip
_LANE, _SENDING, _WIDTH = 0.42, 0.26, 9.6


def draw_timeline(timeline: Timeline, title: str, stem: Path) -> list[Path]:
    """`timeline` as `stem`.png and `stem`.svg; returns both paths.

    Raises:
        OSError: where they cannot be written.
    """
    return write_figure(lambda figure: _fill(figure, timeline, title), stem)


def _fill(figure: "Figure", timeline: Timeline, title: str) -> None:
    from matplotlib.patches import Patch

    figure.set_size_inches(_WIDTH, 1.7 + 0.62 * timeline.nodes)
    area = figure.add_subplot()
    scale, unit = (1e3, "ms") if timeline.seconds < 1 else (1.0, "s")
    for span in timeline.spans:
        sending = span.kind == "transfer"
        bottom = span.node + (_LANE + 0.02 if sending else 0)
        area.broken_barh(
            [(span.start * scale, span.seconds * scale)], (bottom, _SENDING if sending else _LANE),
            facecolors=_COLOURS[span.kind], alpha=0.6 if sending else 1.0, linewidth=0,
        )  # fmt: skip
    area.set_ylim(timeline.nodes - 0.2, -0.1)
    area.set_xlim(0, timeline.seconds * scale)
    area.set_yticks([node + _LANE / 2 for node in range(timeline.nodes)])
    area.set_yticklabels([f"node {node}" for node in range(timeline.nodes)])
    area.set_xlabel(f"time since the round began ({unit})")
    area.spines[["top", "right"]].set_visible(False)
    names = _NAMES if timeline.origin != "recorded" else {**_NAMES, "idle": "not on a core, or waiting in torch"}
    kinds = [kind for kind in _NAMES if any(span.kind == kind for span in timeline.spans)]
    figure.suptitle(title, fontsize="large", fontweight="bold")
    figure.legend(
        handles=[Patch(color=_COLOURS[kind], label=names[kind]) for kind in kinds],
        loc="outside lower center", ncols=4, frameon=False,
    )  # fmt: skip
