"""The views of a timeline's picture."""

import pytest
from timed_traces import averaging, brief_exchange, crossing, swapping

from istbench.report.timeline.bars import timeline_views
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.timeline import Timeline, Transfer


def test_a_brief_exchange_is_enlarged():
    whole, enlarged = timeline_views(recorded_round(brief_exchange(), 2))
    assert (whole.start, whole.end) == (0.0, pytest.approx(1.0))
    assert enlarged.start == pytest.approx(0.98, abs=0.003)
    assert enlarged.end == pytest.approx(1.0)
    assert enlarged.lanes[0].transfers["out"][0][0].seconds == pytest.approx(0.02)


def test_a_late_end_of_the_round_before_does_not_stop_an_exchange_from_being_enlarged():
    timeline = recorded_round(brief_exchange(), 2)
    late = Transfer(operation="send", source=0, target=1, bytes=1.0, start=0.0, end=0.1)
    begun = Timeline(
        where="", round=2, limits=((0.1, 1.0), (0.1, 1.0)), activities=timeline.activities,
        transfers=(late, *timeline.transfers),
    )  # fmt: skip
    assert len(timeline_views(begun)) == 2


@pytest.mark.parametrize("trace", [swapping(), averaging(), crossing(), averaging(nodes=1, buckets=0)])
def test_nothing_is_enlarged_where_transfers_are_long_or_cross_rounds_or_are_none(trace):
    assert len(timeline_views(recorded_round(trace, 2))) == 1
