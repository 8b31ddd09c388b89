"""The bars and panels of a timeline's picture, and the files that are drawn of them."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from timed_traces import TRACES, Node, averaging, brief_exchange, crossing, swapping, trace_of

from istbench.timeline.bars import Bar, activity_bars, merged, transfer_rows
from istbench.timeline.picture import draw_timeline
from istbench.timeline.recorded import recorded_round
from istbench.timeline.timeline import Activity, Timeline, Transfer
from istbench.timeline.views import timeline_views


def bars(*spans):
    return [Bar(start=start, end=end, kind=kind) for start, end, kind in spans]


def sends(*spans):
    """A timeline of ten seconds in which node 0 sends to `peer` from `start` to `end`, given by start."""
    transfers = [
        Transfer(operation="send", source=0, target=peer, bytes=1.0, start=start, end=end)
        for start, end, peer in spans
    ]
    limits = ((0.0, 10.0),) * 4
    working = tuple(Activity(node=n, kind="compute", start=0.0, end=10.0, busy_s=10.0) for n in range(4))
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


@pytest.mark.parametrize("name", TRACES)
def test_pictures_are_the_same_each_time_and_name_every_node(tmp_path, name):
    timeline = recorded_round(TRACES[name], 2)
    paths = draw_timeline(timeline, "a <b> $x^{$ title", tmp_path / "m5.2xlarge-round2")
    assert [path.name for path in paths] == ["m5.2xlarge-round2.png", "m5.2xlarge-round2.svg"]
    text = paths[1].read_text()
    drawn = "".join(ElementTree.fromstring(text).itertext())
    for said in ("$x^{$", "round 2, as recorded", *(f"node {node}" for node in range(timeline.nodes))):
        assert said in drawn
    draw_timeline(timeline, "a <b> $x^{$ title", tmp_path / "m5.2xlarge-round2")
    assert paths[1].read_text() == text


def test_the_legend_names_what_is_drawn_and_nothing_else(tmp_path):
    def said(trace):
        _, svg = draw_timeline(recorded_round(trace, 2), "toy", tmp_path / "round")
        return "".join(ElementTree.fromstring(svg.read_text()).itertext())

    collective = said(averaging())
    assert "collective of all nodes" in collective
    assert "to or from node" not in collective
    assert "no core, or evaluating" not in collective
    exchange = said(swapping())
    for name in ("compute", "exposed communication", "idle, another node is late", "no core, or evaluating"):
        assert name in exchange
    assert "to or from node 1" in exchange
    assert "collective" not in exchange


def test_many_nodes_and_messages_make_a_file_that_can_be_opened(tmp_path):
    nodes = [Node() for _ in range(8)]
    for number in range(2):
        for rank, node in enumerate(nodes):
            ops = []
            for message in range(60):
                node.compute(0.001 * (1 + (rank + message) % 3))
                peers = [peer for peer in range(8) if peer != rank]
                ops += [node.post(kind, 2000, (peer,)) for peer in peers for kind in ("send", "receive")]
            for place, op in enumerate(ops):
                node.wait(100.5 + number + place * 1e-4 + rank * 1e-3, op)
                node.compute(0.00005)
            node.wait(101.0 + number)
            node.step(ends_round=True)
    timeline = recorded_round(trace_of(nodes), 2)
    assert len(timeline.transfers) > 3000
    (view,) = timeline_views(timeline)
    rows = [row for lane in view.lanes for rows in lane.transfers.values() for row in rows]
    assert all(a.end <= b.start + 1e-9 for row in rows for a, b in itertools.pairwise(row))
    png, svg = draw_timeline(timeline, "many messages " * 20, tmp_path / "round")
    assert max(png.stat().st_size, svg.stat().st_size) < 1_000_000
