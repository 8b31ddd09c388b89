"""Rounds of the methods of a table, as bars."""

import pytest
from fake_clusters import sweep_of, write_pair
from read_tables import group_of

from istbench.report.timeline.bars import round_charts


def test_a_round_of_each_method_as_recorded_and_as_replayed(results):
    write_pair(results)
    recorded, replayed = round_charts(group_of(results)), round_charts(sweep_of(results, 8e6).groups[0])
    assert {chart.title for chart in replayed} >= {"ddp on 2 nodes, seed 0", "local_sgd on 2 nodes, seed 0"}
    first = next(chart for chart in replayed if chart.title == "ddp on 2 nodes, seed 0")
    assert first.rows[:3] == ("node 0", "0 out", "0 in")
    assert "replayed on" in first.subtitle
    assert first.x_label == "time in the round (s)" or first.x_label.endswith("(ms)")
    ends = [bar.end for bar in first.bars if bar.row == "node 0"]
    assert max(ends) == pytest.approx(1010, rel=0.02)  # 10 ms, and 1 MB at 1 MB/s
    assert "compute" in dict(first.parts)
    assert recorded == [] or "as recorded" in recorded[0].subtitle


def test_runs_without_a_trace_have_none(results):
    write_pair(results)
    for path in results.rglob("trace.npz"):
        path.unlink()
    assert round_charts(group_of(results)) == []
