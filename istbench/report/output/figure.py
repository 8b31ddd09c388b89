"""A matplotlib figure as PNG and SVG."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from istbench.base.errors import UserError
from istbench.base.files import writing_whole

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
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]
    # Fixed ids and no date make equal files from equal results. A $ in a text does not start mathematics. A
    # matplotlibrc of the working directory, which may be a results folder, does not count: it can start programs.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.hashsalt": "istbench", "svg.fonttype": "none", "text.parse_math": False, "font.size": 11}
        )
        layout = ConstrainedLayoutEngine()
        figure = Figure(layout=layout, dpi=160)
        FigureCanvasAgg(figure)
        fill(figure)
        layout.execute(figure)
        figure.set_layout_engine("none")  # else each file would have it made again, and the PNG be drawn twice
        with writing_whole(paths[0]) as file:
            figure.savefig(file, format="png")
        with writing_whole(paths[1]) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
    return paths


def write_figures(figures: Iterable[tuple[str, Callable[["Figure"], None]]], directory: Path) -> list[Path]:
    """Write each figure, a stem with its `fill`, into `directory` as PNG and SVG; returns the paths.

    Raises:
        UserError: if they cannot be written.
    """
    try:
        return [path for stem, fill in figures for path in write_figure(fill, directory / stem)]
    except OSError as error:
        raise UserError(
            f"cannot write pictures to {directory}: {error.strerror or error}; --no-pictures leaves them out"
        ) from None
