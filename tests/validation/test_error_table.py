"""Replay errors in a table and a picture."""

import xml.etree.ElementTree as ElementTree

import pytest

from istbench.cluster.profile import MessageCosts
from istbench.validation.measurement import ReplayError, by_setting, summary_of
from istbench.validation.picture import draw_errors
from istbench.validation.table import error_table

COSTS = MessageCosts(message_s=2e-4, next_s=5e-5, cpu_s_per_message=1e-5, cpu_s_per_byte=5e-10)


def error(method="ddp", bandwidth="1gbit", repeat=0, *, replayed=1.0, elsewhere=1.0, dilation=1.0, doubt=""):
    """A measurement of one second."""
    return ReplayError(
        method=method, nodes=2, bandwidth=bandwidth, repeat=repeat, measured_s=1.0, replayed_s=replayed,
        recorded_elsewhere_s=elsewhere, dilation=dilation, data="SYNTHETIC words, 9 clips", doubt=doubt,
        carrying=COSTS,
    )  # fmt: skip


def test_an_error_is_replayed_over_measured_less_one():
    found = error(replayed=1.1, elsewhere=0.8)
    assert found.error == pytest.approx(0.1)
    assert found.error_recorded_elsewhere == pytest.approx(-0.2)
    assert found.to_json()["error"] == found.error


def test_repeats_of_one_setting_are_one_row_with_their_median_and_spread():
    errors = [error("ddp", repeat=repeat, replayed=replayed) for repeat, replayed in enumerate([1.02, 0.96, 1.2])]
    errors.insert(1, error("ist", "100mbit", replayed=1.5))
    assert [len(repeats) for repeats in by_setting(errors)] == [3, 1]
    table = error_table(errors, "a title")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["ddp", "2", "1gbit", "1.00", "1.02", "+2.0% [-4.0% to +20.0%]", "+0.0% [+0.0% to +0.0%]"],
        ["ist", "2", "100mbit", "1.00", "1.50", "+50.0%", "+0.0%"],
    ]
    assert [row[5].value for row in table.rows] == [pytest.approx(0.02), pytest.approx(0.5)]


def test_the_footer_has_the_errors_without_their_signs_and_how_slow_the_lab_ran():
    assert summary_of([0.02, -0.04, 0.01]) == "median 2.0%, largest 4.0% without sign; mean -0.3%"
    slow = error(replayed=0.5, elsewhere=1.25, dilation=2.0)
    footer = "\n".join(error_table([error(replayed=1.1), slow], "a title").footer)
    for said in (
        "of 2 measurements: median 30.0%, largest 50.0% without sign; mean -20.0%",
        "median 12.5%, largest 25.0%",
        "2 times slower",
        "Trained on SYNTHETIC words, 9 clips.",
        "ddp, measured before in the lab: 200 us a message",
    ):
        assert said in footer
    quick = "\n".join(error_table([error()], "a title").footer)
    assert "slower" not in quick
    assert "Careful" not in quick
    assert "Careful: 1 measurements may be far off: too loud." in error_table([error(doubt="too loud")], "").footer


def test_the_picture_names_every_method_and_bandwidth_in_order(tmp_path):
    errors = [error("ddp", "1gbit"), error("ist", "100mbit", replayed=1.3), error("mine <b>", "3gbit")]
    png, svg = draw_errors(errors, "a $title", tmp_path / "toy-n2")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawn = "".join(ElementTree.fromstring(svg.read_text()).itertext())
    for said in ("ddp", "ist", "mine <b>", "a $title", "SYNTHETIC words, 9 clips"):
        assert said in drawn
    assert drawn.index("100mbit") < drawn.index("1gbit") < drawn.index("3gbit")
