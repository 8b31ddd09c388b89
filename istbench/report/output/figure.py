"""A matplotlib figure as PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(fill: Callable[["Figure"], None], stem: Path) -> list[Path]:
    """Let `fill` draw a figure, and write it as `stem`.png and `stem`.svg over older files. Returns both paths.

    Raises:
        OSError: if they cannot be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    # Fixed ids and no date make equal files from equal results. A $ in a text does not start mathematics.
    with matplotlib.rc_context(
        {"svg.hashsalt": "istbench", "svg.fonttype": "none", "text.parse_math": False, "font.size": 11}
    ):
        fill(figure)
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
