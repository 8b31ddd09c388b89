"""A matplotlib figure as PNG and SVG."""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from istbench.base.cache import cache_directory, sources_digest
from istbench.base.decode import read_bytes
from istbench.base.errors import UserError
from istbench.base.files import writing_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_BYTES = 2**30


def write_figure(fill: Callable[["Figure"], None], stem: Path) -> list[Path]:
    """Let `fill` draw a figure, and write it as `stem`.png and `stem`.svg over older files. Returns both paths.

    Raises:
        OSError: if they cannot be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    paths = _paths(stem)
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


def write_figures(figures: Iterable[tuple[str, object, Callable[["Figure"], None]]], directory: Path) -> list[Path]:
    """Write each figure into `directory` as PNG and SVG; returns the paths.

    A picture that this code already drew there from the same data stays, as drawing takes half a second.

    Args:
        figures: the stem of each, the data that it shows, whose `repr` tells all of it, and what draws them.

    Raises:
        UserError: if they cannot be written.
    """
    paths = []
    try:
        for stem, data, fill in figures:
            drawn = _Drawn(directory / stem, data)
            if not drawn.is_there():
                write_figure(fill, directory / stem)
                drawn.remember()
            paths += drawn.paths
    except OSError as error:
        raise UserError(
            f"cannot write pictures to {directory}: {error.strerror or error}; --no-pictures leaves them out"
        ) from None
    return paths


class _Drawn:
    """The picture at `stem` of `data`. The user's cache, not the results folder, knows which files show them."""

    def __init__(self, stem: Path, data: object) -> None:
        self.paths = _paths(stem)
        drawn = f"{data!r} {sources_digest('report')} {version('matplotlib')}"
        self._data = _digest(drawn.encode(errors="backslashreplace"))
        self._cached: Path | None = None
        with suppress(UserError):
            self._cached = cache_directory() / "pictures" / _digest(os.fsencode(stem.resolve()))

    def _now(self) -> str:
        pictures = (read_bytes(path, "a picture", _MOST_BYTES) for path in self.paths)
        return " ".join([self._data, *map(_digest, pictures)])

    def is_there(self) -> bool:
        try:
            return self._cached is not None and self._cached.read_text(encoding="utf-8") == self._now()
        except (OSError, UnicodeError, UserError):
            return False

    def remember(self) -> None:
        with suppress(OSError, UserError):  # then it is drawn again next time
            if self._cached is not None:
                with writing_whole(self._cached) as file:
                    file.write(self._now().encode())


def _paths(stem: Path) -> list[Path]:
    return [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
