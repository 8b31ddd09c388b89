"""Whether a finished run can be recorded again, and for how many steps."""

import msgspec
import pytest
import torch
from fake_runs import averaging_trace, header, ramp, write_run

from istbench.base.machine import cores
from istbench.base.options.shares import Shares
from istbench.cluster.trace_builder import merge
from istbench.fabric.recorder import Recorder
from istbench.launch.cells.retrace import shortened, why_not


def finished(results, *, config=None, trace=None, **changed):
    head = header("ddp", **changed)
    head["config"].update(config or {})
    return write_run(results, head, ramp(10.0), trace=trace or averaging_trace())


def recorded(steps, local_steps):
    """The trace of a node that trains `steps` local steps."""
    recorder = Recorder(torch.device("cpu"))
    for step in range(1, steps + 1):
        if step % local_steps == 0:
            recorder.mark("round")
        recorder.mark("step")
    return merge([recorder.events()])


@pytest.mark.parametrize(
    ("local_steps", "steps", "rounds"),
    [
        (1, 2, 1),
        (1, 12, 11),
        (8, 20, 1),
        (8, 24, 2),
        (8, 100, 3),
        (30, 70, 1),
        (30, 90, 2),
        (30, 500, 3),
        (1, 500, 20),
    ],
)
def test_a_run_of_any_length_is_recorded_again_with_as_many_rounds(tmp_path, local_steps, steps, rounds):
    before = recorded(steps, local_steps)
    assert before.rounds == rounds
    run = finished(tmp_path, trace=before)
    short = shortened(run.header(), before)
    after = recorded(short.config.steps, local_steps)
    assert (after.rounds, after.steps) == (before.rounds, before.steps)


def test_the_nodes_keep_the_speeds_that_the_run_measured(tmp_path):
    before = recorded(30, 8)
    header = finished(tmp_path, trace=before).header()
    config = msgspec.structs.replace(header.config, shares=Shares())
    cell = msgspec.structs.replace(header, config=config)
    assert shortened(cell, before, (1.0, 0.5)).config.shares == Shares((1.0, 0.5))
    assert shortened(cell, before).config.shares == Shares()


def test_a_run_on_a_like_machine_can_be_recorded_again(tmp_path):
    assert why_not(finished(tmp_path)) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config": {"device": "cuda"}}, "torch sees no GPU"),
        (
            {"threads": cores() + 1},
            f"{cores() + 1} threads a node are more than the {cores()} cores here",
        ),
        ({"host": {"name": "a, b", "count": 2, "cores": 8, "machine": ""}}, "it ran on 2 machines"),
        ({"status": "interrupted"}, "it is interrupted"),
    ],
)
def test_a_run_that_this_machine_cannot_repeat_is_named_before_it_trains(monkeypatch, tmp_path, changed, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert said in why_not(finished(tmp_path, **changed))
