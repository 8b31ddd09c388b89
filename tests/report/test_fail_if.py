"""`--fail-if`: what a condition says of rows, beside a baseline and alone."""

import pytest
from fake_runs import evaluation, header, ramp, write_plausible, write_run

from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile
from istbench.report.fail_if import check_all, parse_condition
from istbench.report.report import build_report

LEVEL = 0.75


def groups(results, **chosen):
    return build_report(results, cluster=load_profile("m5.2xlarge"), **chosen).groups


def verdicts(text, now, before=()):
    checked, lacking = check_all([parse_condition(text, "--fail-if")], now, before)
    return {one.row: one.verdict for one in checked}, lacking


@pytest.fixture
def recorded(tmp_path):
    for seed in range(3):
        for method in ("ddp", "local_sgd"):
            write_plausible(tmp_path / "results", method, seed=seed, traced=True)
    return groups(tmp_path / "results")


def test_results_are_neither_slower_nor_faster_than_themselves(recorded):
    for measure in (f"time_to({LEVEL})", f"cluster_time_to({LEVEL})", f"megabytes_to({LEVEL})", "final"):
        for text in (f"{measure} > 1.01 * baseline", f"{measure} < .99 * baseline".replace(" .", " 0.")):
            found, lacking = verdicts(text, recorded, recorded)
            assert found == {"ddp on 2 nodes": "no", "local_sgd on 2 nodes": "no"}
            assert lacking == []
        held, _ = verdicts(f"{measure} > 0.99 * baseline", recorded, recorded)
        assert set(held.values()) == {"held"}


def test_a_median_beyond_the_bound_within_a_wide_interval_does_not_fail(recorded):
    (row,) = [row for row in recorded[0].contenders if row.method == "ddp"]
    time = row.time(LEVEL)
    assert time.low < time.median < time.high
    assert verdicts(f"time_to({LEVEL}) > {(time.low + time.median) / 2}", recorded)[0]["ddp on 2 nodes"] == "close"
    assert verdicts(f"time_to({LEVEL}) > {time.low * 0.9}", recorded)[0]["ddp on 2 nodes"] == "held"


def test_a_target_that_is_no_longer_reached_fails(tmp_path, recorded):
    for seed in range(3):
        write_plausible(tmp_path / "worse", "ddp", seed=seed, best=0.5)
    found, lacking = verdicts(f"time_to({LEVEL}) > 1.2 * baseline", groups(tmp_path / "worse"), recorded)
    assert found == {"ddp on 2 nodes": "held"}
    assert lacking == []
    backwards, _ = verdicts(f"time_to({LEVEL}) > 1.2 * baseline", recorded, groups(tmp_path / "worse"))
    assert backwards == {"ddp on 2 nodes": "no"}


def test_a_row_without_a_counterpart_is_said(tmp_path, recorded):
    write_plausible(tmp_path / "few", "ddp", seed=0)
    found, lacking = verdicts(f"time_to({LEVEL}) > 1.2 * baseline", recorded, groups(tmp_path / "few"))
    assert list(found) == ["ddp on 2 nodes"]
    assert lacking == ["local_sgd on 2 nodes: the baseline has no such row of the same data, batch size and budget"]
    with pytest.raises(UserError, match="says nothing of these results"):
        verdicts(f"cluster_time_to({LEVEL}) > 1.2 * baseline", recorded, groups(tmp_path / "few"))


def test_only_runs_of_the_same_batch_size_and_budget_are_compared(tmp_path, recorded):
    write_plausible(tmp_path / "before", "ddp", batch_size=64)
    with pytest.raises(UserError, match="no such row of the same data, batch size and budget"):
        verdicts("final < 2 * baseline", recorded, groups(tmp_path / "before"))


def test_seconds_in_a_lab_are_held_against_those_of_that_lab(tmp_path):
    for lab, seconds in (("1 Gbit/s", 10.0), ("100 Mbit/s", 30.0)):
        head = header(cell=f"ddp-{seconds:g}")
        head["host"] = {**head["host"], "lab": f"links shaped to {lab}"}
        write_run(tmp_path / "before", head, ramp(seconds))
    for name, lab in (("now", "links shaped to 100 Mbit/s"), ("other", "links shaped to 10 Gbit/s")):
        head = header()
        head["host"] = {**head["host"], "lab": lab}
        write_run(tmp_path / name, head, ramp(30.0))
    condition = f"time_to({LEVEL}) > 1.2 * baseline"
    before = groups(tmp_path / "before")
    assert verdicts(condition, groups(tmp_path / "now"), before) == ({"ddp on 2 nodes": "no"}, [])
    _, (line,) = verdicts(condition, groups(tmp_path / "other"), before)
    assert "of another machine or lab, laptop (" in line


def test_bytes_of_a_seed_that_diverged_reach_no_target(tmp_path):
    for seed in range(3):
        diverged = {"status": "failed", "error": "the loss became nan"} if seed else {}
        write_run(tmp_path, header(seed=seed, **diverged), ramp(9.0))
    for measure in ("time_to", "megabytes_to"):
        (checked,), _ = check_all([parse_condition(f"{measure}({LEVEL}) > 1000", "--fail-if")], groups(tmp_path))
        assert checked.verdict == "close"
        assert "never" in checked.sentence


def test_every_table_is_checked(tmp_path):
    for seed, best in enumerate((0.9, 0.5)):
        write_plausible(tmp_path / "results", "ddp", seed=seed, batch_size=64 + seed, best=best)
    found, _ = verdicts("final < 0.7", groups(tmp_path / "results"))
    assert sorted(found.values()) == ["held", "no"]
    assert all("batch size" in row for row in found)


def test_a_baseline_of_two_versions_of_the_code_is_that_of_the_newest(tmp_path, recorded):
    for code, seconds in (("old", 2.0), ("new", 1.0)):
        head = header("ddp", cell=f"ddp-{code}", finished_at=f"2026-01-0{1 if code == 'old' else 2}T00:00:00+00:00")
        head["config"]["code"] = code
        write_run(tmp_path / "before", head, ramp(9.0 * seconds))
    head = header("ddp", cell="ddp-now")
    head["config"]["code"] = "now"
    write_run(tmp_path / "now", head, ramp(9.0))
    found, lacking = verdicts(
        "time_to(0.8) > 1.1 * baseline", groups(tmp_path / "now"), groups(tmp_path / "before")
    )
    assert (list(found.values()), lacking) == (["no"], [])


def test_shares_in_percent_are_refused(recorded):
    for text in ("time_to(77) > 60", "final < 70"):
        with pytest.raises(UserError, match=r"write 7\d % as 0.7"):
            verdicts(text, recorded)


@pytest.mark.parametrize(
    "text",
    ["", "time_to > 2", "final(0.7) < 1", "time_to(0.7) = 2", "time_to(0.7) > 2 * 3", "__import__('os')", "1 > 2"],
)
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match="is no condition such as"):
        parse_condition(text, "--fail-if")


def test_the_parts_of_a_condition():
    found = parse_condition("time_to(-1.5e1)>baseline", "--fail-if")
    assert (found.measure, found.level, found.above, found.bound, found.of_baseline) == (
        "time_to", -15.0, True, 1.0, True
    )  # fmt: skip
    found = parse_condition("final < 0.7", "--fail-if")
    assert (found.measure, found.level, found.above, found.bound, found.of_baseline) == (
        "final", None, False, 0.7, False
    )  # fmt: skip
    assert parse_condition("final > -1.5", "--fail-if").bound == -1.5


def with_finals(results, finals, method="ddp"):
    """The groups of runs that end at `finals`, a seed each; None for a seed that diverged."""
    for seed, value in enumerate(finals):
        diverged = {"status": "failed", "error": "the loss became nan"} if value is None else {}
        write_run(results, header(method, seed=seed, **diverged), ramp(9.0, value or 0.1))
    return groups(results)


@pytest.mark.parametrize(
    ("condition", "before", "now", "verdict"),
    [
        ("final < 0.95 * baseline", (0.9, None, None), (0.9, 0.9, 0.9), "no"),
        ("final < 0.95 * baseline", (0.9, 0.9, 0.9), (None, None, 0.8), "held"),
        ("final < 0.95 * baseline", (-2.0,), (-1.0,), "no"),
        ("final < 0.95 * baseline", (-2.0,), (-2.0,), "no"),
        ("final < 0.95 * baseline", (-2.0,), (-2.05,), "no"),
        ("final < 0.95 * baseline", (-2.0,), (-2.2,), "held"),
        ("final < 0.95 * baseline", (-2.0,), (1.0,), "no"),
        ("final < 0.95 * baseline", (2.0,), (-1.0,), "held"),
        ("final > 1.05 * baseline", (-2.0,), (-4.0,), "no"),
        ("final > 1.05 * baseline", (-2.0,), (-1.8,), "held"),
        ("final < 0.95 * baseline", (-2.0, -2.0, -2.0), (-2.0, None, None), "close"),
        ("final < 0.95 * baseline", (0.0,), (-1.0,), "held"),
        ("final < 0.95 * baseline", (0.0,), (0.0,), "no"),
        ("final < 0.95 * baseline", (0.0,), (1.0,), "no"),
        ("time_to(0) > 1.2 * baseline", (0.5,), (0.6,), "no"),
        ("time_to(0) > 1.2 * baseline", (0.5,), (0.5, 0.5), "no"),
    ],
)
def test_a_final_value_is_held_against_the_size_of_the_baseline(tmp_path, condition, before, now, verdict):
    found, _ = verdicts(condition, with_finals(tmp_path / "now", now), with_finals(tmp_path / "before", before))
    assert found == {"ddp on 2 nodes": verdict}


def test_a_run_that_diverged_has_no_number(tmp_path):
    now, before = (
        with_finals(tmp_path / name, (value, value, 0.9)) for name, value in (("now", None), ("before", 0.9))
    )
    conditions = [parse_condition(text, "--fail-if") for text in ("final < 0.5", "final < 0.9 * baseline")]
    alone, ratio = (one.sentence for one in check_all(conditions, now, before)[0])
    assert "final is diverged [diverged–0.900], less than 0.5" in alone
    assert "final is -inf [-inf–1.00] times the baseline, less than 0.9" in ratio


def test_a_target_reached_at_the_start_of_the_baseline_may_still_be_lost(tmp_path):
    for name, first in (("before", 0.5), ("now", 0.0)):
        write_run(tmp_path / name, header(), [evaluation(0, 0.0, first), evaluation(100, 9.0, 0.3)])
        write_run(tmp_path / name, header("ist"), ramp(9.0))
    now, before = groups(tmp_path / "now"), groups(tmp_path / "before")
    found, lacking = verdicts("time_to(0.4) > 1.2 * baseline", now, before)
    assert (found, lacking) == ({"ddp on 2 nodes": "held", "ist on 2 nodes": "no"}, [])
