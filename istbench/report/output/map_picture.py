"""Maps of methods as PNG and SVG. Every tile has its words, so the colours only repeat them."""

import textwrap
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.base.errors import printable
from istbench.report.map import NEVER_RUN, Tile, WinnerMap
from istbench.report.output.figure import write_figures
from istbench.report.plots.plot import BANDWIDTH_LABEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TILE_INCHES = (1.25, 0.72)
_TILE_CHARACTERS = 15
_LEGEND_COLUMNS = 3
_WHITE = 0.55  # share of white in a tile, so that black words are readable on it
_NO_WINNER = "0.9"
_HATCHES = {"close": "//", "only": "--", "nobody": "xx", "extrapolated": ".."}
_NAMES = {
    "close": "too close to call",
    "only": "no other method ran",
    "nobody": "nobody reached it",
    "extrapolated": f"{NEVER_RUN} never run on so many nodes",
}


def draw_maps(maps: Iterable[WinnerMap], directory: Path) -> list[Path]:
    """Write each of `maps` into `directory` as PNG and SVG, over existing files; returns the paths.

    A map of one winner is a sentence, and has no picture.

    Raises:
        UserError: if they cannot be written.
    """
    shown = (found for found in maps if not found.sentence)
    return write_figures(((found.stem, found, partial(_fill, found)) for found in shown), directory)


def _fill(found: WinnerMap, figure: "Figure") -> None:
    across, down = len(found.columns), len(found.rows)
    width = max(6.4, 1.1 + _TILE_INCHES[0] * across)
    words = textwrap.fill(printable(f"{found.words} {found.subtitle}."), int(width * 13))
    handles = _legend(found)
    lines = words.count("\n") + 1 - (-len(handles) // _LEGEND_COLUMNS)
    figure.set_size_inches(width, 1.5 + 0.21 * lines + _TILE_INCHES[1] * down)
    area = figure.subplots()
    for place, row in enumerate(found.tiles):
        for column, tile in enumerate(row):
            colour = _NO_WINNER if tile.winner is None else found.styles[tile.winner].colour
            _draw_tile(area, column, place, tile, colour)
    area.set_xlim(-0.5, across - 0.5)
    area.set_ylim(-0.5, down - 0.5)
    area.set_xticks(range(across), found.columns)
    area.set_yticks(range(down), [printable(name) for name in found.rows])
    area.tick_params(length=0)
    area.spines[:].set_visible(False)
    area.set_xlabel(BANDWIDTH_LABEL, fontsize="medium")
    area.set_ylabel(printable(found.row_label), fontsize="medium")
    title = textwrap.fill(printable(found.title), int(width * 9))
    figure.suptitle(title, fontsize="large", fontweight="bold")
    figure.legend(
        handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False, title=words,
        title_fontsize="small",
    )  # fmt: skip


def _kinds(tile: Tile) -> list[str]:
    return [*([tile.verdict] if tile.verdict in _HATCHES else []), *(["extrapolated"] if tile.extrapolated else [])]


def _face(colour: str) -> Any:
    from matplotlib.colors import to_rgb

    return tuple(_WHITE + (1 - _WHITE) * part for part in to_rgb(colour))


def _hatched(kinds: Iterable[str]) -> dict[str, Any]:
    """The look of a patch with the hatches of `kinds` and nothing else."""
    hatch = "".join(_HATCHES[kind] for kind in kinds)
    return {"facecolor": "none", "edgecolor": "0.55", "linewidth": 0, "hatch": hatch}


def _draw_tile(area: "Axes", x: int, y: int, tile: Tile, colour: str) -> None:
    from matplotlib.patches import Rectangle

    corner, kinds = (x - 0.5, y - 0.5), _kinds(tile)
    area.add_patch(Rectangle(corner, 1, 1, facecolor=_face(colour), edgecolor="white", linewidth=2))
    if kinds:
        area.add_patch(Rectangle(corner, 1, 1, **_hatched(kinds)))
    words = "\n".join(filter(None, [textwrap.fill(printable(tile.heading), _TILE_CHARACTERS), tile.detail]))
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5} if kinds else None
    area.text(x, y, words, ha="center", va="center", fontsize="small", color="black", bbox=paper)


def _legend(found: WinnerMap) -> list[Any]:
    from matplotlib.patches import Patch

    tiles = [tile for row in found.tiles for tile in row]
    named = dict.fromkeys(tile.winner for tile in tiles if tile.winner is not None)
    kinds = dict.fromkeys(kind for tile in tiles for kind in _kinds(tile))
    return [
        *(
            Patch(facecolor=_face(found.styles[name].colour), label=textwrap.fill(printable(name), 40))
            for name in named
        ),
        *(Patch(**_hatched([kind]), label=_NAMES[kind]) for kind in _HATCHES if kind in kinds),
    ]
