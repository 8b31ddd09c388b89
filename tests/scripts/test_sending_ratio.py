"""P3's gains over the ratio of sending to computing."""

import dataclasses
import sys
from pathlib import Path

import pytest

from istbench.studies.reproduce.figures import read_rows
from istbench.studies.reproduce.paper import PUBLISHED

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))
from sending_ratio import (
    GpuRate,
    PublishedGain,
    RatioCurve,
    gain_at,
    nearest_ratios,
    ratio_plots,
    ratio_tables,
    ratios_of,
)

# A link sends for 2 s at 1 Gbit/s, and a node computes for 1 s, at 1,000 of the 4,000 GFLOP/s of its GPU.
CURVE = RatioCurve(
    title="Net",
    samples="images",
    sending_s=2.0,
    compute_s=1.0,
    gflop_per_step=1000.0,
    batch_size=32,
    peak_gflops=4000.0,
    gains={"p3": {1: 0.1, 2: 0.3, 4: 0.0}},
)
POINTS = [(0.5, 0.0), (1.0, 0.3), (2.0, 0.1)]


def test_points_are_ordered_by_the_ratio_of_sending_to_computing():
    assert CURVE.points("p3") == POINTS


def test_a_gain_between_points_is_on_the_line_over_the_logarithm():
    assert gain_at(POINTS, 2**-0.5) == pytest.approx(0.15)
    assert gain_at(POINTS, 1.0) == pytest.approx(0.3)
    assert gain_at(POINTS, 0.49) is None
    assert gain_at(POINTS, 2.01) is None


def test_a_gain_is_crossed_on_both_sides_of_the_largest():
    assert ratios_of(POINTS, 0.15) == pytest.approx([2**-0.5, 2**0.75])
    assert ratios_of(POINTS, 0.05) == pytest.approx([2 ** (-5 / 6)])


def test_a_gain_that_is_never_reached_is_nearest_at_the_largest():
    assert ratios_of(POINTS, 0.66) == []
    assert nearest_ratios(POINTS, 0.66) == [1.0]


def test_a_ratio_at_a_published_bandwidth_gives_the_speed_of_the_gpu():
    # At 4 Gbit/s sending takes 0.5 s, so at ratio 1 a step of 1,000 GFLOP takes as long: half of the peak.
    share = CURVE.share_of_peak(1.0, 4.0)
    assert share == pytest.approx(0.5)
    assert CURVE.samples_per_s(share) == pytest.approx(64.0)
    assert CURVE.share_of_peak(CURVE.ratio(4.0), 4.0) == pytest.approx(0.25)  # that of the replay


def verdict(gain, gbit_s):
    curve = dataclasses.replace(CURVE, published=(PublishedGain(label="p3", gain=gain, gbit_s=gbit_s),))
    published = ratio_tables([curve])[1]
    return published.rows[0], published.footer[-1]


def test_a_published_gain_within_ours_agrees_at_a_speed_of_the_gpu():
    row, text = verdict(0.3, 4.0)
    assert [entry.text for entry in row][2:] == ["4", "1.30", "1.30", "1.00", "64.0", "2000", "50.0"]
    _, text = verdict(0.15, 4.0)
    assert "agreement, if the card trains 45.3 images/s (35.4 % of its peak) or 108 images/s" in text
    assert "no agreement" not in text


def test_a_published_gain_above_ours_that_the_peak_forbids_is_said_to_disagree():
    row, text = verdict(0.66, 16.0)
    assert row[-1].text == "200"
    assert "no agreement at any ratio" in text
    assert "takes 200 % of the card's peak. At its peak the ratio is 0.500" in text


def test_a_published_gain_without_a_bandwidth_says_nothing_of_the_gpu():
    row, text = verdict(0.66, None)
    assert [entry.value for entry in row][-3:] == [None, None, None]
    assert "peak" not in text


def test_a_picture_spans_a_published_gain_from_the_estimate_to_the_peak():
    figures = (PublishedGain(label="p3", gain=0.25, gbit_s=4.0), PublishedGain(label="p3", gain=0.3, gbit_s=None))
    (plot,) = ratio_plots([dataclasses.replace(CURVE, published=figures)])
    (panel,) = plot.panels
    ours, published = panel.series
    assert (ours.x, ours.y) == ((0.5, 1.0, 2.0), (1.0, 1.3, 1.1))
    assert (min(published.x), max(published.x)) == pytest.approx((0.5, 2.0))
    assert set(published.y) == {1.25}
    assert panel.levels == (1.0, 1.3)


def test_measured_rates_are_scaled_by_the_peak():
    rate = GpuRate(
        gpu="Other", peak_gflops=8000.0, model="net", batch_size=16, step_ms=250.0, software="x", source="y"
    )
    (_, measured) = ratio_tables([dataclasses.replace(CURVE, rates=(rate,))])
    # 64 images/s of 31.25 GFLOP are 2,000 of its 8,000 GFLOP/s.
    assert [entry.text for entry in measured.rows[0]][3:9] == ["64.0", "25.0", "32.0", "–", "–", "–"]


def test_a_measured_rate_gives_the_ratio_at_a_published_bandwidth():
    rate = GpuRate(
        gpu="Other", peak_gflops=8000.0, model="net", batch_size=16, step_ms=250.0, software="x", source="y"
    )
    figure = PublishedGain(label="p3", gain=0.66, gbit_s=2.0)
    *_, measured = ratio_tables([dataclasses.replace(CURVE, rates=(rate,), published=(figure,))])
    # A quarter of 4,000 GFLOP/s computes for 1 s, and a link at 2 Gbit/s sends for 1 s.
    assert [entry.text for entry in measured.rows[0]][6:9] == ["1.00", "1.30", "1.66"]


def test_nothing_replayed_gives_no_table_and_no_picture():
    assert (ratio_tables([]), list(ratio_plots([]))) == ((), [])


def test_each_public_measurement_has_a_source():
    rates = read_rows(PUBLISHED / "gpu_rates.csv", GpuRate)
    assert {rate.model for rate in rates} == {"resnet50", "vgg19"}
    assert all(rate.source for rate in rates)
