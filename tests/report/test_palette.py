"""What methods look like."""

import itertools

import pytest

from istbench.node.registry import registered
from istbench.report.output.html.vega_lite import SHAPES
from istbench.report.palette import method_styles


def test_a_method_looks_the_same_whatever_it_is_compared_with():
    alone = method_styles([("ist", "ist")])["ist"]
    among = method_styles([("ddp", "ddp"), ("ist", "ist"), ("ist", "ist lr=1"), ("mine", "mine")])
    assert among["ist"] == alone
    assert among["ist lr=1"].colour == alone.colour
    assert among["ist lr=1"].line != alone.line
    assert among["ist lr=1"].marker != alone.marker
    assert among["mine"] == method_styles([("mine", "mine")])["mine"]
    assert len({style.colour for style in among.values()}) == 3


def test_every_method_has_a_shape_on_the_page():
    names = [found.name for found in registered("methods")]
    labels = [(name, f"{name}{options}") for name in names for options in ("", *(f" lr={one}" for one in range(9)))]
    assert {style.marker for style in method_styles(labels).values()} <= SHAPES.keys()


def test_methods_from_outside_have_colours_that_no_listed_method_has():
    own = [found.name for found in registered("methods")]
    listed = {style.colour for style in method_styles((name, name) for name in own).values()}
    outside = {style.colour for style in method_styles((f"mine{n}", f"mine{n}") for n in range(40)).values()}
    assert len(outside) == 6
    assert not outside & listed


SIGHT = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
"""Linear RGB as a reader sees it: Machado, Oliveira and Fernandes, 2009."""
TOGETHER = (
    ("ddp", "local_sgd", "ist", "streaming_ist", "diloco", "streaming_diloco", "sparseloco", "noloco"),
    ("ddp", "local_sgd", "ist", "dslide", "model_parallel", "sampled_softmax"),
    ("ddp", "ist", "zero", "fsdp", "p3"),
)


def times(matrix, column):
    return [sum(one * other for one, other in zip(row, column, strict=True)) for row in matrix]


def lab(colour, sight):
    """CIELAB of a colour as the reader sees it."""
    parts = [part / 255 for part in bytes.fromhex(colour[1:])]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    seen = [min(1, max(0, part)) for part in times(SIGHT[sight], linear)]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8729))
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in times(to_xyz, seen))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("names", TOGETHER)
def test_methods_of_one_picture_differ_also_for_colour_blind_readers(names, sight):
    styles = method_styles((name, name) for name in names)
    seen = {name: lab(style.colour, sight) for name, style in styles.items()}
    apart = {
        pair: sum((one - other) ** 2 for one, other in zip(seen[pair[0]], seen[pair[1]], strict=True)) ** 0.5
        for pair in itertools.combinations(names, 2)
    }
    assert {pair: round(far) for pair, far in apart.items() if far < 20} == {}
