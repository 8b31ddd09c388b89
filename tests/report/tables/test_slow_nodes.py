"""The slow node in sentences: the wait of the others, and what shares would save."""

import dataclasses

import pytest
from fake_runs import averaging_trace, header, ramp, write_run
from read_tables import footer

from istbench.cluster.profile import load_profile
from istbench.report.groups import group_runs
from istbench.report.report import build_report
from istbench.report.tables.stalls import slow_node_lines
from istbench.report.tables.summary import run_summary
from istbench.results.events import Speeds
from istbench.results.load import load_run
from istbench.results.on_cluster import run_on_cluster


def run_of(results, computing, *, shares=None, method="ddp", **changed):
    head = header(method, nodes=len(computing), takes_shares="samples", **changed)
    return write_run(
        results, {**head, "config": {**head["config"], "shares": shares}}, ramp(20.0), computing=computing
    )


def main_footer(results):
    return footer(build_report(results).tables[0])


def test_the_row_that_waits_longest_for_a_slow_node_is_named_with_the_gain_of_shares(results):
    run_of(results, (9.0, 9.0, 18.0))
    run_of(results, (9.0, 9.5, 12.0), method="ist")
    run_of(results, (9.0, 9.0, 16.0), method="p3")
    found = main_footer(results)
    assert (
        "Slow node: in ddp on 3 nodes, rank 2 computes at 0.50 of the others' speed; the others wait for it in 45% "
        "of the train seconds, and --shares 1,1,0.5 would save about 36%. 2 other rows wait for a slow node too."
    ) in found
    assert found.count("Slow node") == 1


@pytest.mark.parametrize("computing", [(9.0, 9.0, 10.5), (10.0, 10.2, 10.1), (0.5, 0.5, 2.0)])
def test_a_wait_of_less_than_a_tenth_is_left_out(results, computing):
    run_of(results, computing)
    assert "Slow node" not in main_footer(results)
    assert "speed" not in footer(run_summary(load_run(run_of(results, computing))))


def test_a_method_without_shares_gets_no_advice(results):
    run_of(results, (9.0, 18.0), method="noloco")
    write_run(results, header("ddp"), ramp(20.0), computing=(9.0, 18.0))
    assert "--shares 1,0.5 would save about 30%." in footer(
        run_summary(load_run(run_of(results, (9.0, 18.0), method="zero")))
    )
    own = load_run(write_run(results, header("noloco", seed=1), ramp(20.0), computing=(9.0, 18.0)))
    assert (
        "Rank 1 computes at 0.50 of the others' speed; the other waits for it in 45% of the train seconds."
        in footer(run_summary(own))
    )


def test_many_nodes_are_told_to_measure(results):
    assert "--shares speed would save about" in footer(
        run_summary(load_run(run_of(results, (9.0,) * 11 + (18.0,))))
    )


def test_shares_that_fit_leave_nothing_to_say_and_others_are_set_right(results):
    fits = load_run(run_of(results, (9.0, 9.0, 9.2), shares="1,1,0.5"))
    assert (fits.shares, "speed" in footer(run_summary(fits))) == ((1, 1, 0.5), False)
    off = load_run(run_of(results, (9.0, 9.0, 18.0), shares="1,1,2", seed=1))
    assert (
        "Rank 2 has more than its share of the work; the others wait for it in 45% of the train seconds, and "
        "--shares 1,1,1 would save about 30%."
    ) in footer(run_summary(off))


def test_measured_speeds_are_the_shares_of_a_run(results):
    path = run_of(results, (9.0, 18.0), shares="speed")
    assert load_run(path).shares == ()
    path.append(Speeds(speeds=(1.0, 0.5), step_s=(0.1, 0.2)))
    assert load_run(path).shares == (1.0, 0.5)
    items = {row[0].text: row[1].text for row in run_summary(load_run(path)).rows}
    assert items["speeds of the nodes"] == "1, 0.5"


def test_rows_with_and_without_shares_are_told_apart(results):
    for seed in (0, 1):
        run_of(results, (9.0, 9.0), seed=seed)
        cell = f"speech-ddp-n2-s{seed}-shared"
        run_of(results, (9.0, 9.0), seed=seed, shares="1,0.5", cell=cell, method_label="ddp shares=1,0.5")
    (main, *_) = build_report(results).tables
    assert [row[0].text for row in main.rows] == ["ddp", "ddp shares=1,0.5"]


def test_a_replay_names_the_slow_node_of_a_cluster(results):
    head = header("ddp", takes_shares="samples")
    run = load_run(write_run(results, head, ramp(20.0), computing=(9.0, 9.0)))
    trace = averaging_trace(2, size=8)
    half = dataclasses.replace(load_profile("m5.2xlarge"), speeds=(1.0, 0.5), gflops=100.0)
    for profile, words in (
        (load_profile("m5.2xlarge"), ""),
        (half, "rank 1 computes at 0.50 of the others' speed"),
    ):
        (group,) = group_runs([run_on_cluster(run, trace, profile, {})], profile=profile)
        (line,) = [*slow_node_lines(group)] or [""]
        assert words in line
        assert bool(line) is bool(words)
    assert "the other waits for it in 49% of the train seconds, and --shares 1,0.5 would save about 33%" in line


def test_replayed_shares_by_speed_leave_no_wait_and_save_what_the_sentence_says(results):
    """Recorded on equal machines: a node with a third of the samples computes a third of the seconds."""
    run = load_run(write_run(results, header("ddp"), ramp(20.0)))
    half = dataclasses.replace(load_profile("m5.2xlarge"), speeds=(1.0, 0.5), gflops=100.0)
    traces = [averaging_trace(2, compute=compute, size=8) for compute in ((0.06, 0.06), (0.08, 0.04))]
    equal, shared = (run_on_cluster(run, trace, half, {}) for trace in traces)
    assert shared.curve.seconds[-1] == pytest.approx(equal.curve.seconds[-1] * (1 - 1 / 3), rel=0.01)
    assert equal.cluster.computing == pytest.approx((0.5, 1.0), abs=0.02)
    assert shared.cluster.computing == pytest.approx((1.0, 1.0), abs=0.02)


def test_units_by_speed_may_save_less(results):
    head = header("ist", takes_shares="units")
    run = load_run(write_run(results, head, ramp(20.0), computing=(9.0, 18.0)))
    assert "and --shares 1,0.5 would save at most 30%." in footer(run_summary(run))
