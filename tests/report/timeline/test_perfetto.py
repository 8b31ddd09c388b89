"""What a trace viewer is given of a timeline."""

import itertools
import json

import pytest
from timed_traces import OFFICE, TRACES, averaging, on_office, swapping

from istbench.report.timeline.perfetto import trace_events, write_perfetto
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.simulated import simulated_round


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("show", [recorded_round, on_office])
def test_slices_of_a_named_thread_do_not_overlap(show, name):
    events = trace_events(show(TRACES[name], 2))
    assert {event["ph"] for event in events} <= {"X", "M", "s", "f"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    nodes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert nodes == {node: f"node {node}" for node in range(TRACES[name].world_size)}
    assert {names[node, 0] for node in nodes} == {"compute"}
    slices = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in slices} == set(names)
    for thread in names:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == thread)
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(own))
        assert all(start >= 0 and end >= start for start, end in own)


@pytest.mark.parametrize("trace", [swapping(), averaging()])
def test_an_arrow_leads_from_every_message_to_where_it_arrives(trace):
    timeline = simulated_round(trace, OFFICE, 2)
    events = trace_events(timeline)
    slices = [event for event in events if event["ph"] == "X" and event["cat"] == "network"]
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(timeline.transfers) > 0
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        assert start["pid"] != end["pid"]
        for event in (start, end):
            assert any(
                (s["pid"], s["tid"]) == (event["pid"], event["tid"])
                and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
                for s in slices
            )


def test_a_recorded_collective_has_no_arrows():
    events = trace_events(recorded_round(averaging(), 2))
    assert not [event for event in events if event["ph"] in "sf"]
    assert [e["args"]["target"] for e in events if e["name"] == "all-reduce"] == [None] * 6


def test_computing_says_its_cpu_and_wall_seconds_and_a_transfer_its_bytes(tmp_path):
    write_perfetto(recorded_round(swapping(), 2), "a title", tmp_path / "round.json")
    document = json.loads((tmp_path / "round.json").read_text())
    assert document["otherData"] == {"title": "a title", "times": "as recorded", "round": 2}
    own = {e["name"]: e["args"] for e in document["traceEvents"] if e["pid"] == 1 and e["ph"] == "X"}
    assert own["compute"] == {"cpu_seconds": pytest.approx(0.25), "wall_seconds": pytest.approx(0.75)}
    assert own["send to node 0"] == {"bytes": 10_000_000, "source": 1, "target": 0}
    assert own["send from node 0"] == {"bytes": 10_000_000, "source": 0, "target": 1}
