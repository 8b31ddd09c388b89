"""Timelines: spans that add up to the round, recorded and replayed alike, and what Perfetto is given."""

import itertools
import json
import math

import pytest

from istbench.cli import main
from istbench.cluster.profile import load_profile
from istbench.cluster.trace import TraceBuilder, merge
from istbench.errors import UserError
from istbench.report.perfetto import trace_events
from istbench.report.timeline import recorded, replayed


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def node(rank, rounds=3):
    """Computes 1 s (in 1.5 s of the wall clock), and exchanges 1 MB in 0.25 s; node 1 takes twice as long."""
    clock = Clock()
    builder, other = TraceBuilder(clock), 1 - rank
    for _ in range(rounds):
        clock.now += 1.5 * (1 + rank)
        builder.compute(1.0 + rank)
        posted = [builder.post("send", 1_000_000, [other]), builder.post("receive", 1_000_000, [other])]
        clock.now += 0.25 if rank else 1.75
        for op in posted:
            builder.wait(op)
        builder.mark("round")
        builder.mark("step")
    return builder.to_arrays()


@pytest.fixture
def trace():
    return merge([node(0), node(1)], {"gflops": 100.0})


def spent(timeline, rank):
    return [timeline.total(rank, kind) for kind in ("compute", "communication", "idle")]


@pytest.mark.parametrize("number", [2, 3])
def test_a_recorded_round_is_what_the_clock_said(trace, number):
    timeline = recorded(trace, number)
    assert timeline.origin == "recorded"
    assert spent(timeline, 1) == pytest.approx([2.0, 0.25, 1.0])
    assert spent(timeline, 0)[0] == pytest.approx(1.0)
    sends = [span for span in timeline.spans if span.kind == "transfer"]
    assert [(span.node, span.peer, span.bytes) for span in sends] == [(0, 1, 1e6), (1, 0, 1e6)]
    assert timeline.seconds == pytest.approx(3.25)
    assert all(span.start >= 0 for span in timeline.spans)


@pytest.mark.parametrize("number", [1, 3])
def test_a_replayed_round_adds_up_on_every_node(trace, number):
    profile = load_profile("office-1gbit")
    timeline = replayed(trace, profile, number)
    scale = 100.0 / profile.gflops
    for rank in range(2):
        assert spent(timeline, rank)[0] == pytest.approx((1.0 + rank) * scale)
    # Node 0 waits for the slower node, and then both for the same bytes.
    assert spent(timeline, 0)[2] == pytest.approx(scale, rel=0.05)
    wire = 8e6 / profile.bandwidth_out + profile.latency_s + profile.overhead_s
    assert spent(timeline, 1)[1] == pytest.approx(wire, rel=1e-6)
    assert timeline.seconds == pytest.approx(2 * scale + wire, rel=1e-3)


def test_perfetto_gets_slices_that_do_not_overlap(trace):
    content = json.loads(json.dumps(trace_events(recorded(trace, 2), "a title")))
    slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in slices} == {"compute", "communication", "idle", "transfer"}
    for lane in {(event["pid"], event["tid"]) for event in slices}:
        own = sorted((e["ts"], e["dur"]) for e in slices if (e["pid"], e["tid"]) == lane)
        assert all(a + d <= b or math.isclose(a + d, b) for (a, d), (b, _) in itertools.pairwise(own))
    names = {event["args"]["name"] for event in content["traceEvents"] if event["ph"] == "M"}
    assert names == {"node 0", "node 1", "training", "network"}


@pytest.mark.parametrize("number", [0, 4])
def test_a_round_that_is_not_there(trace, number):
    with pytest.raises(UserError, match="there are rounds 1 to 3"):
        recorded(trace, number)
    with pytest.raises(UserError, match="there are rounds 1 to 3"):
        replayed(trace, load_profile("office-1gbit"), number)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "no run"), (["--bandwidth", "1gbit"], "give --cluster too")],
)
def test_wrong_use_is_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["timeline", str(tmp_path / "nothing"), *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
