"""Plots as Vega-Lite specifications. What a plot shows is in `report.plots`; here is only its style.

A specification is for one panel, because only a single view can take the width of its container. The page sets two
parameters: `hidden`, the labels that its legend switches off, and `target`, the name of the chosen level.
"""

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from istbench.base.errors import clipped as cut
from istbench.base.errors import printable
from istbench.report.map import Tile, Verdict, WinnerMap
from istbench.report.palette import MethodStyle, on_dark
from istbench.report.plots.plot import BAND_FROM, BANDWIDTH_LABEL, Bars, Panel, Plot, Series

Spec = dict[str, Any]
Values = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

_HEIGHT, _ROW_HEIGHT, _LINE = 260, 22, 13
_GREY = "#808080"
_MOST_POINTS = 120
_LONGEST = 300  # characters of a text
_MOST_TOLD = 12
_TILE_CHARACTERS, _TILE_PIXELS, _BESIDE_TILES = 13, 84, 70

DASHES: dict[str, list[int]] = {"-": [1, 0], "--": [7, 4], ":": [2, 3], "-.": [7, 3, 2, 3]}
"""The dashes of matplotlib's lines, in pixels."""

SHAPES = {
    "s": "M-.8,-.8H.8V.8H-.8Z",
    "^": "M0,-1L.95,.75H-.95Z",
    "v": "M0,1L.95,-.75H-.95Z",
    "<": "M-1,0L.75,-.95V.95Z",
    ">": "M1,0L-.75,-.95V.95Z",
    "o": "M-.9,0A.9,.9,0,1,1,.9,0A.9,.9,0,1,1,-.9,0Z",
    "*": "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z",
    "D": "M0,-1L1,0L0,1L-1,0Z",
    "d": "M0,-1L.6,0L0,1L-.6,0Z",
    "P": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
    "X": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "h": "M0,-1L.87,-.5V.5L0,1L-.87,.5V-.5Z",
    "H": "M-1,0L-.5,-.87H.5L1,0L.5,.87H-.5Z",
    "8": "M-.38,-.92H.38L.92,-.38V.38L.38,.92H-.38L-.92,.38V-.38Z",
    "p": "M0,-1L.95,-.31L.59,.81H-.59L-.95,-.31Z",
}
"""The shapes of matplotlib's markers as SVG paths from -1 to 1."""


def clipped(text: str, longest: int = _LONGEST) -> str:
    """`text` from outside on one line of printable characters, at most `longest` of them."""
    return cut(printable(text[: longest + 1]), longest)


def panel_specs(plot: Plot) -> list[Spec]:
    """The specification of each panel of `plot`, on axes that all panels share."""
    styles = {series.label: series.style for panel in plot.panels for series in panel.series}
    axes = {
        "x": _x_axis(plot),
        "y": _y_axis(plot),
        "color": _by_label(styles, [style.colour for style in styles.values()]),
    }
    return [_panel_spec(plot, panel, axes, styles) for panel in plot.panels]


def _panel_spec(plot: Plot, panel: Panel, axes: Spec, styles: Mapping[str, MethodStyle]) -> Spec:
    layers = _line_layers(plot) if plot.kind == "lines" else _point_layers(plot)
    low, high = axes["y"]["scale"].get("domain", (0.0, 0.0))
    data = [row for series in panel.series for row in _values(plot, series, high - low)]
    return {
        **_frame(panel_text(plot, panel), _HEIGHT),
        "params": [{"name": "hidden", "value": []}, {"name": "target", "value": ""}],
        "data": {"values": data},
        "transform": [{"filter": "indexof(hidden, datum.label) < 0"}, {"flatten": ["x", "y"]}],
        "encoding": axes,
        "layer": [*_levels(plot, panel, axes["y"]), *(_styled(layer, styles) for layer in layers)],
        "usermeta": {"dark": [on_dark(style.colour) for style in styles.values()]},
    }


def bars_spec(plot: Bars) -> Spec:
    names, colours = [clipped(name) for name, _ in plot.parts], [colour for _, colour in plot.parts]
    low = min((bar.start for bar in plot.bars), default=0.0)
    high = max((bar.end for bar in plot.bars), default=1.0)
    data = [
        {
            "row": clipped(bar.row), "part": clipped(bar.part), "start": _within(bar.start, high - low),
            "end": _within(bar.end, high - low), **({"text": bar.text} if bar.text else {}),
        }
        for bar in plot.bars
    ]  # fmt: skip
    span = {
        "x": {
            **_quantity("start"), "title": clipped(plot.x_label),
            "scale": {"domain": [_within(low, high - low), _within(high, high - low)], "nice": False},
            "axis": {"grid": False},
        },
        "x2": {"field": "end"},
        "y": {
            "field": "row", "type": "nominal", "sort": None, "title": None,
            "scale": {"domain": [clipped(row) for row in plot.rows]}, "axis": {"labelLimit": 150, "ticks": False},
        },
    }  # fmt: skip
    colour = {
        "field": "part", "type": "nominal", "scale": {"domain": names, "range": colours},
        "legend": {"orient": "bottom", "title": None, "columns": 2, "labelLimit": 200},
    }  # fmt: skip
    words = {
        "x": _quantity("middle"), "y": span["y"], "text": {"field": "text"},
        "color": {"condition": {"test": _on_light(plot), "value": "#000"}, "value": "#fff"},
    }  # fmt: skip
    return {
        **_frame(bars_text(plot), {"step": _ROW_HEIGHT}),
        "usermeta": {"dark": [on_dark(colour) for colour in colours]},
        "data": {"values": data},
        "transform": [{"calculate": "(datum.start + datum.end) / 2", "as": "middle"}],
        "layer": [
            _layer(
                "bar",
                {"height": {"band": 0.8}, "stroke": _GREY, "strokeWidth": 0.3},
                {**span, "color": colour, "tooltip": [{"field": name} for name in ("row", "part", "start", "end")]},
            ),
            _layer("text", {"fontSize": 10}, words, "isValid(datum.text)"),
        ],
    }


def map_spec(plot: WinnerMap) -> Spec:
    """The specification of a map: a tile has the colour of its first method, and names it.

    Tiles without a winner are grey. Those with a method that was never run on their nodes have a dashed edge.
    """
    data = [
        {
            "column": column, "row": row, "first": clipped(tile.heading, 40), "lead": tile.detail,
            "lines": _tile_lines(tile), "method": tile.verdict if tile.winner is None else clipped(tile.winner),
            **({} if tile.seconds is None else {"seconds": _short(tile.seconds)}),
            **_hollow(tile.extrapolated),
        }
        for row, tiles in zip(plot.rows, plot.tiles, strict=True)
        for column, tile in zip(plot.columns, tiles, strict=True)
    ]  # fmt: skip
    colours = {clipped(name): style.colour for name, style in plot.styles.items()}
    colours |= dict.fromkeys(_NO_WINNER, _GREY)
    apart = {"paddingInner": 0.05, "paddingOuter": 0.03}
    place = {
        "x": {
            "field": "column", "type": "ordinal", "sort": None, "title": BANDWIDTH_LABEL, "scale": apart,
            "axis": {"labelAngle": 0, "grid": False},
        },
        "y": {
            "field": "row", "type": "ordinal", "sort": None, "title": clipped(plot.row_label), "scale": apart,
            "axis": {"grid": False},
        },
    }  # fmt: skip
    lines = max(len(one["lines"]) for one in data)
    tile = {
        "color": {
            "field": "method", "type": "nominal", "legend": None,
            "scale": {"domain": list(colours), "range": list(colours.values())},
        },
        "fillOpacity": {
            "condition": {"test": f"indexof({list(_NO_WINNER)}, datum.method) >= 0", "value": 0.08}, "value": 0.4,
        },
        "tooltip": [{"field": name} for name in ("column", "row", "first", "lead", "seconds")],
    }  # fmt: skip
    dashed = {"filled": False, "stroke": _GREY, "strokeWidth": 2, "strokeDash": [5, 4]}
    middle = {
        "fontSize": 11, "lineHeight": _LINE, "baseline": "middle",
        "dy": {"expr": f"-{_LINE / 2} * (length(datum.lines) - 1)"},
    }  # fmt: skip
    return {
        **_frame(map_text(plot), {"step": (lines + 1.5) * _LINE}),
        "data": {"values": data},
        "encoding": place,
        "layer": [
            _layer("rect", {"stroke": _GREY, "strokeWidth": 0.6}, tile),
            _layer("rect", dashed, None, "datum.hollow"),
            _layer("text", middle, {"text": {"field": "lines"}}),
        ],
    }


_NO_WINNER: tuple[Verdict, ...] = ("close", "only", "nobody")


def _tile_lines(tile: Tile) -> list[str]:
    texts = (clipped(tile.heading, 40), tile.detail)
    return [line for text in texts for line in textwrap.wrap(text, _TILE_CHARACTERS)]


def map_width(plot: WinnerMap) -> int:
    """The least width in pixels at which the words of a map fit into its tiles."""
    return _BESIDE_TILES + _TILE_PIXELS * len(plot.columns)


def map_text(plot: WinnerMap) -> str:
    """The map in a sentence for each tile."""
    told = [
        f"{row} {plot.row_label}, {column}: {tile.text}."
        for row, tiles in zip(plot.rows, plot.tiles, strict=True)
        for column, tile in zip(plot.columns, tiles, strict=True)
    ]
    return clipped(f"{plot.title}. {' '.join(told)}", 2_000)


def panel_text(plot: Plot, panel: Panel) -> str:
    """The panel in a sentence for each line, for readers who do not see it."""
    told = [_told(plot, series) for series in panel.series]
    more = f" And {len(told) - _MOST_TOLD} more." if len(told) > _MOST_TOLD else ""
    return clipped(f"{panel.title}: {plot.y_label} over {plot.x_label}. {' '.join(told[:_MOST_TOLD])}{more}", 2_000)


def bars_text(plot: Bars) -> str:
    """The bars in a sentence for each row."""
    totals: dict[str, dict[str, float]] = {row: {} for row in plot.rows}
    for bar in plot.bars:
        totals[bar.row][bar.part] = totals[bar.row].get(bar.part, 0.0) + bar.end - bar.start
    told = [
        f"{row}: {', '.join(f'{part} {total:.3g}' for part, total in parts.items())}."
        for row, parts in totals.items()
        if parts
    ]
    return clipped(f"{plot.title}. {plot.x_label}. {' '.join(told[:_MOST_TOLD])}", 2_000)


def _told(plot: Plot, series: Series) -> str:
    name = clipped(series.label)
    if plot.kind == "lines":
        if not series.x:
            return f"{name}: no points."
        return f"{name}: from {series.y[0]:.3g} to {series.y[-1]:.3g} at {series.x[-1]:.3g}."
    there = [f"{y:.3g} at {_tick(plot, x)}" for x, y in zip(series.x, series.y, strict=True)]
    missed = [f"not reached at {_tick(plot, x)}" for x in series.missed]
    return f"{name}: {', '.join([*there, *missed]) or 'no points'}."


def _tick(plot: Plot, x: float) -> str:
    places = plot.tick_places or tuple(map(float, range(len(plot.ticks))))
    return plot.ticks[places.index(x)] if x in places else f"{x:g}"


def _frame(text: str, height: int | Spec) -> Spec:
    return {
        "$schema": SCHEMA, "description": text, "width": "container", "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }  # fmt: skip


def _by_label(styles: Mapping[str, MethodStyle], outputs: Sequence[Any]) -> Spec:
    """An encoding that gives each label one of `outputs`. The page has its own legend."""
    domain = [clipped(label) for label in styles]
    return {
        "field": "label",
        "type": "nominal",
        "scale": {"domain": domain, "range": list(outputs)},
        "legend": None,
    }


def _styled(layer: Spec, styles: Mapping[str, MethodStyle]) -> Spec:
    """`layer` with dashes for a line and shapes for points of the methods, so that no one needs the colours."""
    outputs: dict[str, tuple[str, list[Any]]] = {
        "line": ("strokeDash", [DASHES[style.line] for style in styles.values()]),
        "point": ("shape", [SHAPES[style.marker] for style in styles.values()]),
    }
    found = outputs.get(layer["mark"]["type"])
    if found is None:
        return layer
    return {**layer, "encoding": {**layer["encoding"], found[0]: _by_label(styles, found[1])}}


def _values(plot: Plot, series: Series, span: float) -> Values:
    """The data of a series: the places and heights of each line as lists, which the specification flattens.

    span: the length of the axis of the heights.
    """
    label = clipped(series.label)
    if plot.kind == "points":
        return _points(plot, series, label)
    every = max(1, -(-len(series.x) // _MOST_POINTS))
    kept = [*range(0, len(series.x), every), *([len(series.x) - 1] if (len(series.x) - 1) % every else [])]
    rows: Values = [
        {"label": label, "kind": "seed", "seed": line.seed, **_lists(plot, zip(line.x, line.y, strict=True), span)}
        for line in series.each
    ]
    points = list(zip(series.x, series.y, strict=True))
    rows.append({"label": label, "kind": "median", **_lists(plot, (points[at] for at in kept), span)})
    marked = _lists(plot, (points[at] for at in series.marked), span)
    rows.append({"label": label, "kind": "mark", **_hollow(bool(series.extrapolated)), **marked})
    return [row for row in rows if row["x"]]


def _lists(plot: Plot, points: Iterable[tuple[float, float]], span: float = 0.0) -> Spec:
    kept = [  # heights far from zero, such as log-likelihoods near -14,120, differ in digits after the fourth
        (_short(x), _short(y) if abs(y) <= 2 * span else _within(y, span))
        for x, y in points
        if (x > 0 or plot.x_scale == "linear") and (y > 0 or plot.y_scale == "linear")
    ]
    return {"x": [x for x, _ in kept], "y": [y for _, y in kept]}


def _points(plot: Plot, series: Series, label: str) -> Values:
    places = [plot.place(series.label, x) for x in series.x]
    rows: Values = [{"label": label, "kind": "line", **_lists(plot, zip(places, series.y, strict=True))}]
    top = plot.seconds_limits()[1]
    for x, place, y, low, high in zip(series.x, places, series.y, series.low, series.high, strict=True):
        rows.append(
            {
                "label": label, "kind": "point", "at": _tick(plot, x), "x": [_short(place)], "y": [_short(y)],
                "low": _short(low), "high": _short(min(high, top)), **({"open": True} if high > top else {}),
                **_hollow(x in series.extrapolated),
            }
        )  # fmt: skip
    for x in series.missed:
        place = plot.place(series.label, x, series.missed)
        rows.append(
            {
                "label": label, "kind": "missed", "at": _tick(plot, x), "x": [_short(place)], "y": [None],
                **_hollow(x in series.extrapolated),
            }
        )  # fmt: skip
    return rows


def _hollow(never_run: bool) -> Spec:
    return {"hollow": True} if never_run else {}


def _short(value: float) -> float | int:
    """`value` with four significant digits: a page of two hundred runs must fit into a mail."""
    return _written(float(f"{value:.4g}"))


def _within(value: float, span: float) -> float | int:
    """`value` rounded to a part in ten thousand or more of `span`, the length of the axis that shows it."""
    return _written(round(value, 4 - math.floor(math.log10(span)))) if span > 0 else _short(value)


def _written(rounded: float) -> float | int:
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _layer(mark: str, look: Spec, encoding: Spec | None = None, *only: str) -> Spec:
    """A layer of one `mark` with its `look`, of the rows for which the expressions `only` hold."""
    return {
        "transform": [{"filter": expression} for expression in only],
        "mark": {"type": mark, **look},
        "encoding": encoding or {},
    }


def _quantity(field: str) -> Spec:
    return {"field": field, "type": "quantitative"}


def _markers(plot: Plot, kind: str, size: int, encoding: Spec) -> list[Spec]:
    """A layer of points, and one of hollow points where nodes were never run."""
    look: Spec = {"filled": True, "size": size, "opacity": 1}
    layers = [_layer("point", look, encoding, _of_kind(kind), "!datum.hollow")]
    if plot.has_extrapolated:
        hollow = {**look, "filled": False, "strokeWidth": 1.6}
        layers.append(_layer("point", hollow, encoding, _of_kind(kind), "datum.hollow"))
    return layers


def _of_kind(kind: str) -> str:
    return f"datum.kind === '{kind}'"


def _line_layers(plot: Plot) -> list[Spec]:
    named = [("label", "method"), ("x", plot.x_label), ("y", plot.y_label)]
    told = {"tooltip": [{"field": field, "title": clipped(title)} for field, title in named]}
    seed = {"detail": {"field": "seed", "type": "nominal"}}
    return [
        _layer("line", {"strokeWidth": 0.9, "opacity": 0.5}, seed, _of_kind("seed")),
        _layer("line", {"strokeWidth": 2.6}, None, _of_kind("median")),
        *_markers(plot, "mark", 55, told),
        # An invisible place for the words of each point, so that the whole line has them.
        _layer("circle", {"size": 220, "opacity": 0}, told, _of_kind("median")),
    ]


def _point_layers(plot: Plot) -> list[Spec]:
    below = round((1 - BAND_FROM) * _HEIGHT)
    bars = {"y": _quantity("low"), "y2": {"field": "high"}}
    beyond = {"y": {"value": below * plot.has_missed}}
    layers = [
        _layer("line", {"strokeWidth": 1.8}, None, _of_kind("line")),
        _layer("rule", {"strokeWidth": 1.4}, bars, _of_kind("point")),
        _layer("text", {"text": "↑", "fontSize": 13, "dy": 2}, beyond, _of_kind("point"), "datum.open"),
        *_markers(plot, "point", 75, {"tooltip": _TOLD}),
    ]
    if not plot.has_missed:
        return layers
    once: Spec = {"data": {"values": [{}]}}
    strip = {**_WIDE, "y": {"value": 0}, "y2": {"value": below}, "color": {"value": _GREY}}
    named = {"text": "not reached", "align": "right", "fontSize": 10, "dx": -4}
    corner = {"x": {"value": "width"}, "y": {"value": 8}, "color": {"value": _GREY}}
    return [
        once | _layer("rect", {"opacity": 0.13}, strip),
        once | _layer("text", named, corner),
        *layers,
        *_markers(plot, "missed", 75, {"y": {"value": below * 0.6}, "tooltip": _TOLD[:3]}),
    ]


_WIDE: Spec = {"x": {"value": 0}, "x2": {"value": "width"}}
_TOLD = [{"field": name} for name in ("label", "kind", "at", "y")]


def _levels(plot: Plot, panel: Panel, y_axis: Spec) -> list[Spec]:
    """Lines at the targets with their names. The chosen one is stronger."""
    if not panel.levels:
        return []
    named = [
        (level, clipped(name))
        for level, name in zip(panel.levels, panel.level_names, strict=True)
        if level > 0 or plot.y_scale == "linear"
    ]
    shifts = _apart([_pixels(level, y_axis["scale"]) for level, _ in named])
    data = {
        "values": [
            {"level": level, "name": name, "shift": shift}
            for (level, name), shift in zip(named, shifts, strict=True)
        ]
    }
    chosen = {"test": "datum.name === target", "value": 1}
    place = {"y": _quantity("level"), "color": {"value": _GREY}}
    line = {**place, **_WIDE, "opacity": {"condition": chosen, "value": 0.45}}
    name = {
        **place, "x": {"value": "width"}, "text": {"field": "name"},
        "opacity": {"condition": chosen, "value": 0.8},
    }  # fmt: skip
    beside = {"align": "left", "dx": 3, "dy": {"expr": "datum.shift"}, "fontSize": 10}
    return [
        {"data": data, **_layer("rule", {"strokeDash": [5, 4], "strokeWidth": 1.2}, line)},
        {"data": data, **_layer("text", beside, name)},
    ]


def _pixels(level: float, scale: Spec) -> float:
    """The height of `level` above the bottom of a panel, in pixels. Round ends of an axis make it a little less."""
    if "domain" not in scale:
        return 0.0
    low, high, at = ((math.log(x) if scale["type"] == "log" else x) for x in (*scale["domain"], level))
    return _HEIGHT * (at - low) / (high - low)


def _apart(heights: Sequence[float]) -> list[int]:
    """Pixels by which to lower the text at each of `heights`, so that no two of them overlap."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    shifts = [0] * len(heights)
    clusters: list[list[int]] = []
    for place in order:
        clusters.append([place])
        while len(clusters) > 1 and _spread(clusters[-1], heights)[0] - _spread(clusters[-2], heights)[-1] < _LINE:
            last = clusters.pop()
            clusters[-1] += last
    for cluster in clusters:
        for place, height in zip(cluster, _spread(cluster, heights), strict=True):
            shifts[place] = round(heights[place] - height)
    return shifts


def _spread(cluster: Sequence[int], heights: Sequence[float]) -> list[float]:
    """Heights a line apart for the texts of `cluster`, from the lowest, around the mean of their own."""
    middle = sum(heights[place] for place in cluster) / len(cluster)
    return [middle + (number - (len(cluster) - 1) / 2) * _LINE for number in range(len(cluster))]


def _x_axis(plot: Plot) -> Spec:
    encoding: Spec = {**_quantity("x"), "title": clipped(plot.x_label)}
    if plot.kind == "points":
        low, high = plot.place_limits()
        places = list(plot.tick_places) or list(range(len(plot.ticks)))
        encoding["scale"] = {"type": plot.x_scale, "domain": [low, high], "nice": False, "zero": False}
        encoding["axis"] = {
            "values": places, "labelExpr": f"{json.dumps(plot.ticks)}[indexof({json.dumps(places)}, datum.value)]",
            "grid": False,
        }  # fmt: skip
        return encoding
    drawn = [x for places, _ in _all_lines(plot) for x in places]
    drawn = [x for x in drawn if x > 0] if plot.x_scale == "log" else [0.0, *drawn]
    encoding["scale"] = {"type": plot.x_scale, "nice": False, "zero": False, **_domain(drawn)}
    encoding["axis"] = _AXIS
    return encoding


def _y_axis(plot: Plot) -> Spec:
    encoding: Spec = {**_quantity("y"), "title": clipped(plot.y_label), "axis": _AXIS}
    if plot.kind == "points":
        encoding["scale"] = {"type": "log", "domain": list(plot.seconds_limits()), "nice": False}
        return encoding
    drawn = [y for _, heights in _all_lines(plot) for y in heights]
    drawn += [level for panel in plot.panels for level in panel.levels]
    drawn = [y for y in drawn if y > 0] if plot.y_scale == "log" else drawn
    encoding["scale"] = {"type": plot.y_scale, "nice": plot.y_scale == "linear", "zero": False, **_domain(drawn)}
    return encoding


# Without the 6, the step of the ticks sets the digits: "2e+1" for 20.
_AXIS = {"tickCount": 6, "format": ".6~g", "gridOpacity": 0.35}


def _all_lines(plot: Plot) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    every = [series for panel in plot.panels for series in panel.series]
    return [(line.x, line.y) for line in every] + [(line.x, line.y) for series in every for line in series.each]


def _domain(drawn: Sequence[float]) -> Spec:
    finite = [value for value in drawn if math.isfinite(value)]
    if not finite or min(finite) == max(finite):
        return {}
    low, high = min(finite), max(finite)
    return {"domain": [_within(low, high - low), _within(high, high - low)]}


def _on_light(plot: Bars) -> str:
    """The expression for a bar whose colour is light enough for a black text."""
    dark = [clipped(name) for name, colour in plot.parts if sum(bytes.fromhex(colour[1:])) < 3 * 110]
    return f"indexof({json.dumps(dark)}, datum.part) < 0"
