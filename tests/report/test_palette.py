"""What methods look like."""

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
