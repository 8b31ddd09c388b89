"""Where the seconds of a round went."""

import pytest
from timed_traces import on_office, swapping

from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.timeline import timeline_table


def test_the_table_says_where_the_seconds_went():
    table = timeline_table(recorded_round(swapping(), 2), "toy by ist, 2 nodes")
    assert table.title == "toy by ist, 2 nodes, round 2, as recorded"
    values = [[cell.value for cell in row] for row in table.rows]
    assert values == [
        [0, pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), pytest.approx(1.5)],
        [1, pytest.approx(1.0), pytest.approx(0.5), 0, pytest.approx(1.5)],
    ]
    assert "In 33% of the compute seconds" in table.footer[0]
    assert timeline_table(on_office(swapping(), 2), "toy").footer == ()
