"""What a trace is made of, and what is not one."""

import numpy as np
import pytest
from traces import same, trace

from istbench.cluster.trace import (
    AFTER,
    EVENT,
    MARK,
    POST,
    WAIT,
    WAIT_BEFORE,
    Trace,
    TraceMeta,
)
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.cluster.trace_problems import problem

STEP = ("mark", "step")
EXCHANGE = [("compute", 1.5), ("post", "all_reduce", 100), ("wait", 0), ("mark", "round"), STEP]


def built(*program):
    builder = TraceBuilder(clock=lambda: 0.0)
    for name, *arguments in program:
        getattr(builder, name)(*arguments)
    return builder.to_arrays()


def test_operations_are_numbered_and_transfers_matched_one_way_at_a_time():
    events = built(
        ("post", "send", 1, (1,)),
        ("post", "send", 2, (2,)),
        ("post", "send", 3, (1,)),
        ("post", "receive", 4, (1,)),
        ("post", "barrier", 0),
        ("post", "all_reduce", 5, (), 0),
    )
    assert events.dtype == EVENT
    assert events["op"].tolist() == [0, 1, 2, 3, 4, 5]
    assert events["match"].tolist() == [0, 0, 1, 0, 0, 1]


def test_what_a_send_comes_after_stands_before_it():
    events = built(("post", "receive", 1, (1,)), ("post", "send", 1, (1,), 0, (0,)))
    assert events["code"].tolist() == [POST, AFTER, POST]
    assert events["op"].tolist() == [0, 0, 1]


def test_a_wait_for_what_was_posted_before_recording_began_is_left_out():
    builder = TraceBuilder()
    before = builder.post("all_reduce", 1)
    builder.clear()
    builder.wait(before)
    assert len(builder) == 0
    builder.wait(builder.post("all_reduce", 1))
    assert builder.to_arrays()["code"].tolist() == [POST, WAIT]


def test_a_wait_for_the_sample_before_names_the_last_such_operations():
    events = built(
        ("wait_before", "receive", (1,), 1),
        ("wait_before", "send", (1,), 0),
        ("wait_before", "send", (1,), 1),  # this sample sends only once
        ("post", "receive", 1, (1,)),
        ("post", "receive", 1, (2,)),
        ("post", "receive", 1, (1,)),
        ("post", "send", 1, (1,)),
    )
    waits = events[events["code"] == WAIT_BEFORE]
    assert waits["op"].tolist() == [0, 3]
    assert waits["peer"].tolist() == waits["match"].tolist() == [-1, -1]


def test_events_are_timed_from_the_first_of_any_node():
    ticks = iter([50.0, 40.0, 60.0, 70.0])
    builders = [TraceBuilder(clock=lambda: next(ticks)) for _ in range(2)]
    for _ in range(2):
        for builder in builders:
            builder.mark("step")
    merged = merge([builder.to_arrays() for builder in builders])
    assert [events["at"].tolist() for events in merged.nodes] == [[10.0, 20.0], [0.0, 30.0]]


def test_a_trace_counts_steps_and_rounds():
    sample = same(2, [*EXCHANGE[:1], STEP, *EXCHANGE])
    assert (sample.world_size, sample.steps, sample.rounds) == (2, 2, 1)
    assert same(2, [STEP, STEP]).rounds == 2


@pytest.mark.parametrize(
    ("gflops", "speed"),
    [(80, 80.0), ({"a": 30.0, "b": 60.0}, 40.0), (None, None), ({}, None)],
)
def test_the_speed_of_the_recording_machine(gflops, speed):
    assert same(1, EXCHANGE, gflops=gflops).gflops == (pytest.approx(speed) if speed else None)


@pytest.mark.parametrize(
    ("programs", "found"),
    [
        ([EXCHANGE, EXCHANGE[:3]], "node 1: no step or round ends in it"),
        ([EXCHANGE, EXCHANGE[:-1]], "node 1 has other steps and rounds than node 0"),
        ([EXCHANGE, [("mark", "round"), STEP]], "node 1 has other collectives than node 0"),
        ([EXCHANGE, [("post", "all_reduce", 99), *EXCHANGE[-2:]]], "node 1 has other collectives than node 0"),
        ([[("post", "send", 1, (0,)), STEP]], "node 0: a transfer to itself"),
        ([[("post", "send", 1, (7,)), STEP]], "node 0: a peer outside the 1 nodes"),
        ([[("compute", -1.0), STEP]], "node 0: negative or unreadable seconds or bytes"),
        ([[("compute", float("inf")), STEP]], "node 0: negative or unreadable seconds or bytes"),
        (
            [[("post", "barrier", 0), ("post", "barrier", 0, (), 0, (0,)), STEP]],
            "only a send, a receive or work",
        ),
        (
            [[("post", "send", 1, (1,)), STEP], [STEP]],
            "1 sends from node 0 to node 1, but 0",
        ),
        ([[("post", "send", 1, (1,)), STEP], [("post", "receive", 2, (0,)), STEP]], "receives differ in size"),
    ],
)
def test_events_that_do_not_fit_together_are_named(programs, found):
    with pytest.raises(ValueError, match=found):
        merge([built(*program) for program in programs])


@pytest.mark.parametrize(
    ("code", "field", "value", "found"),
    [
        (POST, "code", 9, "node 1: unknown event 9"),
        (POST, "kind", 9, "node 1: unknown operation 9"),
        (MARK, "kind", 9, "node 1: unknown mark 9"),
        (POST, "op", 7, "node 1: operations are not numbered from 0"),
        (WAIT, "op", 7, "node 1: it waits for an operation that was not posted"),
        (WAIT, "op", -1, "node 1: it waits for an operation that was not posted"),
        (POST, "match", 5, "transfers from node 0 to node 1 are not numbered from 0"),
        (POST, "bytes", -1, "node 1: negative or unreadable seconds or bytes"),
    ],
)
def test_corrupted_fields_are_found(code, field, value, found):
    sound = trace(
        *[[("post", *transfer), ("wait", 0), STEP] for transfer in (("send", 1, (1,)), ("receive", 1, (0,)))]
    )
    events = sound.nodes[1].copy()
    events[field][events["code"] == code] = value
    assert problem(Trace(nodes=(sound.nodes[0], events), meta=TraceMeta(nodes=2))) == found


def test_no_nodes_or_other_arrays_are_no_trace():
    assert problem(Trace(nodes=(), meta=TraceMeta(nodes=2))) == "no nodes"
    assert problem(Trace(nodes=(np.zeros(3),), meta=TraceMeta(nodes=2))) == "node 0: not an array of events"


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({}, ""),
        ({"cores": 2, "others_cores": 0.1, "gflops_range": 1.1}, ""),
        ({"cores": 2, "others_cores": 1.94}, "others used 1.9 of 2 cores while it was recorded"),
        ({"cores": 64, "others_cores": 1.94}, ""),
        ({"device": "cuda", "stalled_s": 3.04}, "its recorded rounds have stalls of 3.0 s"),
        ({"device": "cpu", "stalled_s": 3.04}, ""),
        ({"gflops_range": 1.62}, "the machine's speed changed by 1.6 times while it was recorded"),
    ],
)
def test_what_speaks_against_a_trace_is_said(meta, expected):
    assert TraceMeta(nodes=2, **meta).doubt == expected
