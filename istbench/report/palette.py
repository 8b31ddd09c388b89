"""Colour, line and marker of each method in every picture of every report."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Dash = Literal["-", "--", ":", "-."]


@dataclass(frozen=True, kw_only=True)
class MethodStyle:
    """Style of a method. colour: RGB in hex. line and marker: names of matplotlib."""

    colour: str
    line: Dash
    marker: str


# Methods that meet in one picture differ in hue or lightness also for colour-blind readers: a test simulates them.
_KNOWN = {
    "ddp": ("#0072B2", "s"),
    "local_sgd": ("#009E73", "^"),
    "ist": ("#D55E00", "o"),
    "streaming_ist": ("#882255", "*"),
    "parameter_server": ("#E69F00", "D"),
    "p3": ("#CC79A7", "v"),
    "dslide": ("#001399", "P"),
    "fsdp": ("#000000", "X"),
    "zero": ("#525252", "h"),
    "model_parallel": ("#4D4010", "<"),
    "sampled_softmax": ("#004D66", ">"),
    "diloco": ("#332288", "p"),
    "streaming_diloco": ("#56B4E9", "d"),
    "sparseloco": ("#661100", "8"),
    "noloco": ("#2121D9", "H"),
}
# Of a method that is not listed, chosen by its name. Markers tell two of one colour apart.
_OTHER_COLOURS = ("#B2182B", "#4D4D4D", "#1F1FF9", "#F91FD5", "#04AE04", "#547C03")
_OTHER_MARKERS = ("X", "h", "<", ">", "p", "d")
_LINES: tuple[Dash, ...] = ("-", "--", ":", "-.")

# Activities of a node in a timeline. No method has these colours, so no bar looks like a method.
ACTIVITY_COLOURS = {"compute": "#3A4A6B", "stalled": "#AEB9CE", "communication": "#E8743B", "idle": "#ECECEC"}
COLLECTIVE_COLOUR = "#767676"

# Nodes at the other end of a transfer: Paul Tol's muted colours, which colour-blind readers tell apart.
NODE_COLOURS = (
    "#44AA99", "#CC6677", "#DDCC77", "#88CCEE", "#AA4499", "#117733", "#999933", "#882255", "#332288",
)  # fmt: skip


def method_styles(labels: Iterable[tuple[str, str]]) -> dict[str, MethodStyle]:
    """The style of each label from (method, label) pairs. A method has the same colour in every picture.

    The bare name of a method has a solid line. Its labels with options have other lines and markers, by name.
    """
    named = sorted(set(labels), key=lambda pair: (pair[0], pair[1] != pair[0], pair[1]))
    found: dict[str, MethodStyle] = {}
    for method in dict.fromkeys(method for method, _ in named):
        colour, marker = _KNOWN.get(method) or _other(method)
        own = [label for name, label in named if name == method]
        markers = (marker, *(shape for shape in _OTHER_MARKERS if shape != marker))
        # The solid line is reserved for the bare name, even if it is absent.
        first = 0 if own[0] == method or len(own) == 1 else 1
        for order, label in enumerate(own, start=first):
            line, shape = _LINES[order % len(_LINES)], markers[order % len(markers)]
            found[label] = MethodStyle(colour=colour, line=line, marker=shape)
    return found


def _other(method: str) -> tuple[str, str]:
    digest = hashlib.sha256(method.encode()).digest()
    return _OTHER_COLOURS[digest[0] % len(_OTHER_COLOURS)], _OTHER_MARKERS[digest[1] % len(_OTHER_MARKERS)]


# A colour needs three times the luminance of the ground, and some margin.
_LEAST_ON_DARK = 0.16


def on_dark(colour: str) -> str:
    """`colour`, RGB in hex, as light as a dark ground needs."""
    red, green, blue = (part / 255 for part in bytes.fromhex(colour[1:]))
    share = 0.0
    while share < 1 and _luminance(*(part + (1 - part) * share for part in (red, green, blue))) < _LEAST_ON_DARK:
        share += 0.05
    return "#" + "".join(f"{round(255 * (part + (1 - part) * share)):02X}" for part in (red, green, blue))


def _luminance(*parts: float) -> float:
    """Relative luminance of red, green and blue from 0 to 1, by WCAG 2."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
