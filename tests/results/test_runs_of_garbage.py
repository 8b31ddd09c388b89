"""Whatever lies in a run directory, it is read, or named in one line, and the other runs are reported."""

import json
import os
import sys

import msgspec
import pytest
from fake_runs import evaluation, header, resume, start, write_plausible, write_run
from garbage import VALUES, as_json, damaged, nested, one_line, quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES
from istbench.base.options.texts import LONGEST_MESSAGE
from istbench.report.output.formats import report_json
from istbench.report.report import build_report
from istbench.results.events import Fault, Note, Speeds, Stop
from istbench.results.header import Git, Header, NodeSeconds
from istbench.results.load import load_run, load_runs
from istbench.results.store import RunDirectory

RAMP = [evaluation(0, 0.0, 0.1), evaluation(10, 5.0, 0.75), evaluation(20, 9.0, None)]
EVENTS = [
    start(time="then"), *RAMP, resume(10, time="now"), evaluation(20, 9.0, 0.8), Note(message="slices"),
    Speeds(speeds=(0.5, 1.0), step_s=(0.2, 0.1)),
    Fault(message="why", time="then"), Stop(status="done", step=20, time="now"),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A results directory with a sound run, and one of every field that is to be damaged."""
    results = tmp_path_factory.mktemp("whole") / "results"
    write_plausible(results, "ddp")
    lab = {"summary": "a lab", "bandwidth": 1e9, "latency_s": 0.1, "dilation": 2.0}
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


LONG, MANY = "x" * 100_000, {str(number): 1 for number in range(20_000)}
TOO_MUCH = {
    "budget": LONG, "error": LONG, "started_at": LONG, "finished_at": LONG, "unit": LONG, "typed_data": LONG,
    "versions": {"torch": LONG}, "git": {"commit": LONG, "dirty": True},
    "narrowed": {"width": LONG}, "host.machine": LONG, "host.lab": LONG, "host.name": 20 * LONG,
    "data_source.kind": LONG, "data_source.path": LONG, "data_source.fingerprint": LONG, "data_source.note": LONG,
    "result.final": MANY, "result.weights_sha256": LONG,
    "result.node_seconds": [{"rank": 0, "host": "h", "computing_s": 1, "waiting_s": 1}] * 20_000,
    "config.workload": LONG, "config.method_options": {"lr": [[[1]]]}, "config.workload_options": {"width": 10**30},
    "config.plugins": ["a.py"] * 5000, "config.sinks": [LONG], "config.save": LONG, "config.code": LONG,
    "config.lab.summary": LONG,
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_no_text_and_no_list_of_a_header_is_without_a_bound(whole, name):
    results, run, head, _ = whole
    before, damaged = run.run_json.read_bytes(), json.loads(json.dumps(head))
    *parents, last = name.split(".")
    owner = damaged
    for parent in parents:
        owner = owner[parent]
    owner[last] = TOO_MUCH[name]
    try:
        run.run_json.write_text(as_json(damaged))
        (problem, *_) = report(results)
        assert problem.startswith(f"{run.run_json}: ")
        assert len(problem) < 500
    finally:
        run.run_json.write_bytes(before)


def test_data_that_was_split_twice_is_refused(whole):
    results, run, head, _ = whole
    before, source = run.run_json.read_bytes(), head["data_source"]
    try:
        twice = {**source, "before_split": {**source, "before_split": source}}
        run.run_json.write_text(as_json({**head, "data_source": twice}))
        assert "data_source must be split once at most" in report(results)[0]
    finally:
        run.run_json.write_bytes(before)


@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_a_file_of_a_size_that_no_run_writes_is_not_read(whole, name):
    results, run, _, _ = whole
    before = (run.path / name).read_bytes()
    try:
        with (run.path / name).open("r+b") as file:
            file.truncate(2**40)
        assert any("bytes, more than" in problem for problem in report(results))
    finally:
        (run.path / name).write_bytes(before)


def test_more_events_than_a_run_has_are_not_decoded(whole, monkeypatch):
    _, run, _, _ = whole
    monkeypatch.setattr("istbench.results.store.MOST_EVENTS", 5)
    with pytest.raises(UserError, match=r"events\.jsonl has 14 lines, more than the 5 of a run; delete"):
        run.events()


def test_a_finished_run_without_a_result_is_left_out(whole):
    results, run, head, _ = whole
    before = run.run_json.read_bytes()
    try:
        run.run_json.write_text(as_json({**head, "result": None}))
        assert report(results)[0] == (
            f"{run.run_json}: the run is done, but result is missing; delete {run.path} to run the cell again"
        )
        run.run_json.write_text(as_json({**head, "result": None, "status": "interrupted"}))
        load_run(run)
    finally:
        run.run_json.write_bytes(before)


@pytest.mark.parametrize(
    "cell",
    [
        "",
        ".",
        "..",
        "../../VICTIM",
        "/dev/null",
        "a/b",
        "cell\n",
        "cell\0",
        "x" * 201,
        "t\u043ey",
        "a\u202eb",
        "-rf",
    ],
)
def test_a_cell_is_no_path(whole, cell):
    results, run, head, _ = whole
    before = run.run_json.read_bytes()
    try:
        run.run_json.write_text(as_json({**head, "cell": cell}))
        (problem, *_) = report(results)
        assert problem.startswith(f"{run.run_json}: cell must match [A-Za-z0-9][A-Za-z0-9._-]{{0,199}}, not ")
        assert problem.isprintable()
    finally:
        run.run_json.write_bytes(before)


def test_what_a_run_says_is_cut_where_it_is_recorded(tmp_path, whole):
    _, run, _, _ = whole
    own = RunDirectory(tmp_path / run.header().cell)
    own.create(msgspec.structs.replace(run.header(), status="running"))
    said = "cannot read \udcff " + LONG
    own.append(Note(message=said))
    own.append(resume(-1, damage=said))
    own.end("failed", said)
    note, resumed, fault, _ = own.events()
    assert note.message == resumed.damage == fault.message == own.header().error
    assert note.message.startswith("cannot read ? xxx")
    assert len(note.message) == LONGEST_MESSAGE


def test_a_header_of_the_largest_run_fits(tmp_path, whole):
    _, run, _, _ = whole
    own, head = RunDirectory(tmp_path / "run"), run.header()
    names = [f"{'h' * 58}-{rank:05d}" for rank in range(MOST_NODES)]
    seconds = [
        NodeSeconds(rank=rank, host=name, computing_s=1 / 3, waiting_s=1 / 7) for rank, name in enumerate(names)
    ]
    result = msgspec.structs.replace(head.result, node_seconds=tuple(seconds))
    host = msgspec.structs.replace(head.host, name=", ".join(names))
    own.create(msgspec.structs.replace(head, result=result, host=host, nodes=MOST_NODES))
    assert len(own.header().result.node_seconds) == MOST_NODES


@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_nesting_pipes_and_folders_are_left_out_at_once(whole, name):
    results, run, _, _ = whole
    path = run.path / name
    before = path.read_bytes()
    try:
        path.write_text(nested('{"a":', "}") + "\n")
        # From Python 3.14 on, the stack's size is the limit, and the text is read to the error in its middle.
        too_deep = "nested too deep" if sys.version_info < (3, 14) else "not JSON"
        refused = "a: unknown name" if name == "run.json" else too_deep
        assert any(refused in problem for problem in report(results))
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
