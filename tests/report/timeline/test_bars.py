"""The bars of a timeline's picture."""

import pytest
from timed_traces import swapping

from istbench.report.timeline.bars import TimelineBar, activity_bars, merged, transfer_rows
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.timeline import NodeActivity, Timeline, Transfer


def bars(*spans):
    return [TimelineBar(start=start, end=end, kind=kind) for start, end, kind in spans]


def sends(*spans):
    """A timeline of ten seconds in which node 0 sends to `peer` from `start` to `end`, given by start."""
    transfers = [
        Transfer(operation="send", source=0, target=peer, bytes=1.0, start=start, end=end)
        for start, end, peer in spans
    ]
    limits = ((0.0, 10.0),) * 4
    working = tuple(NodeActivity(node=n, kind="compute", start=0.0, end=10.0, busy_s=10.0) for n in range(4))
    return Timeline(where="made up", round=1, limits=limits, activities=working, transfers=tuple(transfers))


def spans(row):
    return [(bar.start, bar.end, bar.kind) for bar in row]


def test_a_node_without_a_core_is_shown_apart_from_computing():
    assert spans(activity_bars(recorded_round(swapping(), 2), 1)) == [
        (0.0, pytest.approx(0.25), "compute"),
        (pytest.approx(0.25), pytest.approx(0.5), "compute"),
        (pytest.approx(0.5), pytest.approx(1.0), "stalled"),
        (pytest.approx(1.0), pytest.approx(1.5), "communication"),
    ]


def test_transfers_take_as_few_rows_as_they_need():
    timeline = sends((0.0, 2.0, 1), (2.0, 4.0, 2), (3.0, 6.0, 3), (4.0, 5.0, 1))
    assert [spans(row) for row in transfer_rows(timeline, 0, "out", 0.0)] == [
        [(0.0, 2.0, 1), (2.0, 4.0, 2), (4.0, 5.0, 1)],
        [(3.0, 6.0, 3)],
    ]
    assert [spans(row) for row in transfer_rows(timeline, 1, "in", 0.0)] == [[(0.0, 2.0, 0), (4.0, 5.0, 0)]]
    assert transfer_rows(timeline, 1, "out", 0.0) == []


def test_an_overlap_that_cannot_be_seen_needs_no_row():
    timeline = sends((0.0, 2.01, 1), (2.0, 4.0, 2))
    assert len(transfer_rows(timeline, 0, "out", 0.0)) == 2
    assert [spans(row) for row in transfer_rows(timeline, 0, "out", 0.1)] == [[(0.0, 2.0, 1), (2.0, 4.0, 2)]]


def test_messages_to_one_peer_share_a_row_to_the_end_of_the_last():
    (row,) = transfer_rows(sends((0.0, 9.0, 1), (1.0, 2.0, 1), (3.0, 4.0, 1)), 0, "out", 0.0)
    assert spans(row) == [(0.0, 1.0, 1), (1.0, 3.0, 1), (3.0, 9.0, 1)]


def test_bars_too_short_to_be_seen_are_merged_into_what_most_of_them_is():
    short = bars((0.0, 0.3, "compute"), (0.3, 0.9, "idle"), (0.9, 3.0, "compute"), (3.0, 3.1, "idle"))
    assert spans(merged(short, 1.0)) == [(0.0, 0.9, "idle"), (0.9, 3.0, "compute"), (3.0, 3.1, "idle")]
    assert merged(short, 0.01) == short


def test_many_short_bars_that_look_the_same_are_one_but_not_over_a_gap():
    many = [(k / 100, (k + 1) / 100, 1) for k in range(300)]
    far = [(8 + k / 100, 8 + (k + 1) / 100, 1) for k in range(100)]
    found = merged(bars(*many, *far), 0.1)
    assert [(bar.start, pytest.approx(bar.end)) for bar in found] == [(0.0, 3.0), (8.0, 9.0)]
