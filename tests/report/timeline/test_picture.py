"""The files that are drawn of a timeline."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from timed_traces import TRACES, Node, averaging, swapping, trace_of

from istbench.report.output.timeline_picture import draw_timeline
from istbench.report.timeline.bars import timeline_views
from istbench.report.timeline.recorded import recorded_round


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
