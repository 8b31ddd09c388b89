"""`replay --shares`: rows that suppose shares by speed, beside the recorded ones of equal nodes."""

import dataclasses

import pytest
from fake_runs import averaging_trace, header, ramp, write_run
from read_tables import footer

from istbench.base.options.shares import Shares
from istbench.cluster.profile import load_profile
from istbench.report.report import replay_runs
from istbench.report.tables.comparison import comparison

HALF = dataclasses.replace(load_profile("m5.2xlarge"), name="half", speeds=(1.0, 0.5), gflops=100.0)


@pytest.fixture
def replayed(results):
    """Replays of `ddp` and `ist` on two nodes with these shares: the group, and lines on what is left out."""

    def found(shares):
        for method, divides in (("ddp", "samples"), ("ist", "units")):
            write_run(results, header(method, takes_shares=divides), ramp(20.0), trace=averaging_trace(2, size=8))
        on_half = replay_runs(results, {"half": [HALF]}, shares=shares)
        return on_half.groups[0], on_half.problems

    return found


@pytest.mark.parametrize("typed", ["speed", "1,0.5"])
def test_a_row_with_shares_stands_beside_the_recorded_one_and_is_sooner(replayed, typed):
    group, problems = replayed(Shares.decode(typed))
    rows = {row.label: row for row in group.contenders}
    assert rows.keys() == {"ddp", f"ddp shares={typed}", "ist"}
    equal, shared = (rows[label].trained().median for label in ("ddp", f"ddp shares={typed}"))
    assert shared == pytest.approx(equal * (171 / 128) / 2, rel=0.01)  # of 256 samples, the fast node has 171
    (line,) = problems
    assert "ist has no samples to divide; train it with --shares if it takes them" in line
    assert "Some rows with shares were never run" in footer(comparison(group))


def test_a_run_with_shares_is_replayed_with_others(results):
    """With equal ones, it computes as the run of equal nodes does."""
    own = header("ddp", takes_shares="samples", method_label="ddp shares=1,0.5")
    own["config"]["shares"] = "1,0.5"
    write_run(results, own, ramp(20.0), trace=averaging_trace(2, size=8))
    (group,) = replay_runs(results, {"half": [HALF]}, shares=Shares((1, 1))).groups
    rows = {row.label: row.trained().median for row in group.contenders}
    assert rows.keys() == {"ddp shares=1,0.5", "ddp shares=1,1"}
    assert rows["ddp shares=1,1"] == pytest.approx(rows["ddp shares=1,0.5"] * 128 / 85, rel=0.01)  # the slow node
    (line,) = replay_runs(results, {"half": [HALF]}, shares=Shares((2, 1))).problems
    assert line.endswith("its nodes had the samples of --shares 2,1")


def test_a_cluster_of_equal_nodes_does_not_end_the_rows_of_others(results):
    write_run(results, header("ddp", takes_shares="samples"), ramp(20.0), trace=averaging_trace(2, size=8))
    equal = dataclasses.replace(HALF, name="equal", speeds=())
    for names in (("equal", "half"), ("half", "equal")):
        clusters = {name: [{"equal": equal, "half": HALF}[name]] for name in names}
        found = replay_runs(results, clusters, shares=Shares.decode("speed"))
        rows = {group.profile.name: {row.label for row in group.contenders} for group in found.groups}
        assert rows == {"equal": {"ddp"}, "half": {"ddp", "ddp shares=speed"}}
        (line,) = found.problems
        assert " on equal: its nodes had the samples of --shares speed" in line


def test_shares_of_other_nodes_leave_the_recorded_rows(replayed):
    group, problems = replayed(Shares((1, 2, 3)))
    assert {row.label for row in group.contenders} == {"ddp", "ist"}
    assert any("--shares 1,2,3 has 3 numbers for 2 nodes; give one for each" in line for line in problems)
    assert "rows with shares were never" not in footer(comparison(group))
