"""A matplotlib figure as PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(fill: Callable[["Figure"], None], stem: Path) -> list[Path]:
    """Write what `fill` draws into a figure as `stem`.png and `stem`.svg, over what is there; returns both paths.

    Raises:
        OSError: where they cannot be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    # Fixed ids and no date: the same results give the same file. No text is mathematics, even with a $.
    with matplotlib.rc_context(
        {"svg.hashsalt": "istbench", "svg.fonttype": "none", "text.parse_math": False, "font.size": 11}
    ):
        fill(figure)
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
