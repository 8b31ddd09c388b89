"""Whatever lies in a run directory, it is read, or named in one line, and the other runs are reported."""

import json
import os

import msgspec
import pytest
from fake_runs import evaluation, header, write_plausible, write_run
from garbage import VALUES, as_json, damaged, nested, one_line, quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.errors import UserError
from istbench.report.output.formats import report_json
from istbench.report.report import build_report
from istbench.results.events import Fault, Note, Resume, Start, Stop
from istbench.results.header import Git, Header
from istbench.results.load import load_run, load_runs

RAMP = [evaluation(0, 0.0, 0.1), evaluation(10, 5.0, 0.75), evaluation(20, 9.0, None)]
EVENTS = [
    Start(time="then"), *RAMP, Resume(step=10, time="now"), evaluation(20, 9.0, 0.8), Note(message="slices"),
    Fault(message="why"), Stop(status="done", step=20),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A results directory with a sound run, and one of every field that is to be damaged."""
    results = tmp_path_factory.mktemp("whole") / "results"
    write_plausible(results, "ddp")
    lab = {"summary": "a lab", "bandwidth": 1e9, "latency_s": 0.1, "fabric_latency_s": 0.1, "dilation": 2.0}
    head = header(
        "ist",
        started_at="then",
        finished_at="now",
        error="none",
        lower_is_better=True,
        unit="nats",
        control_nodes=1,
        typed_data="words",
    )
    head["config"] = {**head["config"], "lab": lab, "target": 0.75, "max_seconds": 30.0, "plugins": ["a.py"]}
    head["host"] = {**head["host"], "lab": "a lab"}
    run = write_run(results, head, [*RAMP[:2], evaluation(20, 9.0, 0.8)])
    run.update(git=Git(commit="abc", dirty=True))
    for event in EVENTS:
        run.append(event)
    return results, run, json.loads(run.run_json.read_text()), run.events_jsonl.read_text()


def report(results):
    """Everything that is made of runs; returns what was left out."""
    runs, problems = load_runs(results)
    assert "speech-ddp-n2-s0" in {run.header.cell for run in runs}
    found = build_report(results)
    report_json(found)
    return [one_line(problem) for problem in (*problems, *found.problems)]


def test_every_field_of_a_header_is_there_to_be_damaged(whole):
    _, run, head, _ = whole
    assert set(head) == set(Header.__struct_fields__)
    assert load_run(run).header.config.lab.dilation == 2.0
    assert all(head[name] is not None for name in head)


@quick(100)
@given(data=st.data())
def test_a_damaged_header(whole, data):
    results, run, head, _ = whole
    before = run.run_json.read_bytes()
    try:
        run.run_json.write_text(as_json(data.draw(damaged(head))))
        report(results)
    finally:
        run.run_json.write_bytes(before)


@quick(80)
@given(data=st.data())
def test_any_value_for_any_field(whole, data):
    results, run, head, _ = whole
    name, value = data.draw(st.sampled_from(sorted(head))), data.draw(VALUES)
    before = run.run_json.read_bytes()
    try:
        run.run_json.write_text(as_json({**head, name: value}))
        report(results)
    finally:
        run.run_json.write_bytes(before)


@quick(100)
@given(data=st.data())
def test_a_damaged_event(whole, data):
    results, run, _, events = whole
    lines = events.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number] = as_json(data.draw(damaged(json.loads(lines[number]))))
    try:
        run.events_jsonl.write_text("\n".join(lines) + "\n")
        for problem in report(results):
            assert "speech-ist" in problem
    finally:
        run.events_jsonl.write_text(events)


@quick(100)
@given(content=st.binary(max_size=100), name=st.sampled_from(["run.json", "events.jsonl"]), cut=st.integers(0, 400))
def test_bytes_in_the_middle_of_a_file(whole, content, name, cut):
    results, run, _, _ = whole
    path = run.path / name
    before = path.read_bytes()
    try:
        path.write_bytes(before[:cut] + content + before[cut + len(content) :])
        report(results)
    finally:
        path.write_bytes(before)


def test_one_field_of_another_type_leaves_out_one_run(whole):
    results, run, head, _ = whole
    before = run.run_json.read_bytes()
    try:
        run.run_json.write_text(as_json({**head, "nodes": "two"}))
        (problem, *_) = report(results)
        assert problem.startswith(f"{run.run_json}: nodes must be a whole number, not 'two'; delete ")
    finally:
        run.run_json.write_bytes(before)


@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_nesting_pipes_and_folders_are_left_out_at_once(whole, name):
    results, run, _, _ = whole
    path = run.path / name
    before = path.read_bytes()
    try:
        path.write_text(nested('{"a":', "}") + "\n")
        assert any("nested too deep" in problem for problem in report(results))
        path.unlink()
        os.mkfifo(path)
        assert any("is a pipe, not a file" in problem for problem in report(results))
        path.unlink()
        path.mkdir()
        assert any("is a directory, not a file" in problem for problem in report(results))
        path.rmdir()
        path.symlink_to(path)
        assert any(name in problem for problem in report(results))
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(before)


def test_an_unknown_event_is_named_with_its_line(whole):
    _, run, _, events = whole
    try:
        run.events_jsonl.write_text(events + '{"event": "sabbath", "step": 3}\n')
        with pytest.raises(UserError, match=rf"line {len(events.splitlines()) + 1}: event .*sabbath"):
            load_run(run)
    finally:
        run.events_jsonl.write_text(events)


def test_what_is_written_is_what_is_read(whole):
    _, run, _, _ = whole
    head = run.header()
    run.create(head)
    assert run.header() == head
    assert msgspec.structs.asdict(head)["config"] == head.config
