"""Which method overtakes which."""

import json

import pytest
from fake_clusters import sweep_of, write_pair
from fake_runs import averaging_trace, header, ramp, write_run

from istbench.report.tables.crossings import crossings, crossings_table


def at_bandwidths(sweep):
    return [crossing for crossing in crossings(sweep) if crossing.bandwidth is not None]


def test_methods_cross_where_their_times_are_equal(results):
    """ddp takes 1 + 8e8/b seconds for its 100 steps, local_sgd 3 + 8e7/b: equal at 3.6e8 bits/s."""
    write_pair(results)
    (at_07, at_08) = at_bandwidths(sweep_of(results, 3.5e8, 3.7e8))
    assert (at_07.below, at_07.above, at_07.nodes, at_07.target.level) == ("local_sgd", "ddp", 2, 0.7)
    assert at_07.bandwidth == pytest.approx(3.6e8, rel=1e-3)
    assert at_08.bandwidth == pytest.approx(at_07.bandwidth)
    assert at_bandwidths(sweep_of(results, 1e6, 1e7, 1e8)) == []
    # Through a tie on one of the bandwidths, they cross once.
    tied = sweep_of(results, 3.6e8 / 1.01, 3.6e8, 3.6e8 * 1.01)
    assert [crossing.bandwidth for crossing in at_bandwidths(tied)] == pytest.approx([3.6e8] * 2, rel=1e-3)


def test_a_method_that_missed_the_target_overtakes_nobody(results):
    write_pair(results)
    trace = averaging_trace(2, compute=(0.02,), size=1)
    write_run(results, header("ist"), ramp(1.0, 0.75), trace=trace)
    of_ist = [found for found in at_bandwidths(sweep_of(results, 1e6, 1e12)) if "ist" in (found.below, found.above)]
    assert [(found.below, found.above, found.target.level) for found in of_ist] == [("ist", "ddp", 0.7)]


def test_crossings_in_words(results):
    write_pair(results)
    table = crossings_table(sweep_of(results, 3.5e8, 3.7e8))
    assert [cell.text for cell in table.rows[1]] == ["local_sgd overtakes ddp below 360 Mbit/s", "2", "0.8"]
    assert table.rows[1][0].value["ahead_below"] == "local_sgd"
    json.dumps([cell.value for cell in table.rows[0]])


def test_a_pair_that_never_crosses_says_who_is_ahead(results):
    write_pair(results)
    trace = averaging_trace(2, compute=(0.02,), size=1)
    write_run(results, header("ist"), ramp(1.0, 0.75), trace=trace)
    write_run(results, header("p3"), ramp(1.0, 0.2), trace=trace)
    table = crossings_table(sweep_of(results, 1e6, 1e7))
    assert [row[0].text for row in table.rows if row[2].text == "0.8"] == [
        "ddp ahead of ist throughout: ist did not reach it",
        "local_sgd ahead of ddp throughout",
        "ddp ahead of p3 throughout: p3 did not reach it",
        "local_sgd ahead of ist throughout: ist did not reach it",
        "neither ist nor p3 reached it",
        "local_sgd ahead of p3 throughout: p3 did not reach it",
    ]
    (row,) = [row for row in table.rows if row[2].text == "0.8" and row[0].text.endswith("ddp throughout")]
    assert row[0].value == {
        "ahead_below": "local_sgd", "ahead_above": "local_sgd", "bandwidth_bits_per_s": None, "one": "ddp",
        "other": "local_sgd",
    }  # fmt: skip
    json.dumps([cell.value for row in table.rows for cell in row])


def test_methods_that_take_equally_long_are_said_to(results):
    trace = averaging_trace(2)
    for method in ("ddp", "p3"):
        write_run(results, header(method), ramp(5.0), trace=trace)
    table = crossings_table(sweep_of(results, 1e6, 1e7))
    assert [row[0].text for row in table.rows] == ["ddp and p3 equal throughout"] * 2


def test_one_method_alone_is_compared_with_none(results):
    write_run(results, header("ddp"), ramp(5.0), trace=averaging_trace(2))
    table = crossings_table(sweep_of(results, 1e6, 1e7))
    assert table.rows == ()
    assert table.empty == "No two methods to compare between 1 Mbit/s and 10 Mbit/s."
