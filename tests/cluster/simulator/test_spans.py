"""The timeline of a replay."""

from traces import FLOW, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, second_segment, trace

from istbench.cluster.simulator import replay


def test_spans_tell_where_the_time_went():
    step = [("compute", 0.2), *blocking("all_reduce", SIZE)]
    result = replay(trace(step, [("compute", 0.1), *step]), cluster(), rounds=3, spans=True)
    for kind, seconds in (
        ("compute", result.compute_s),
        ("communication", result.communication_s),
        ("idle", result.idle_s),
    ):
        spans = [span for span in result.spans if span.activity == kind]
        for node in (0, 1):
            assert sum(s.end - s.start for s in spans if s.node == node) == exactly(seconds[node, -1])
    carried = [span for span in result.spans if span.activity == "message"]
    assert len(carried) == result.messages == 12
    assert sum(span.bytes for span in carried) == exactly(result.bytes_sent.sum())
    hop = OVERHEAD + FLOW / 2 + LATENCY + second_segment(2)
    assert all(span.end - span.start == exactly(hop) for span in carried)
