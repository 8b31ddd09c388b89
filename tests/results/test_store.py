"""The run directory survives what happens to disks and processes."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path

import fake_runs
import msgspec
import pytest
from fake_runs import RESULT, evaluation, header, resume, start

from istbench.base.decode import decode_own
from istbench.base.errors import NoSpace, UserError
from istbench.results import store
from istbench.results.events import Fault, Note, Stop, digest_with
from istbench.results.header import Header
from istbench.results.store import RunDirectory, wait_for_space

END_BYTES, END_EVENTS = 2**18, 2**10  # that a run keeps for its end
HEADER = msgspec.convert(header(status="running"), Header, dec_hook=decode_own)


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "deep" / HEADER.cell)
    directory.create(HEADER)
    return directory


def test_a_header_is_read_back_and_updated(run):
    assert run.exists()
    run.update(status="done", result=RESULT)
    assert run.header() == msgspec.structs.replace(HEADER, status="done", result=RESULT)
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_path_that_is_not_utf8_is_recorded_for_readers(run):
    config = msgspec.structs.replace(HEADER.config, plugins=("/lat\udcf6/ä.py",), save="/lat\udcf6")
    run.create(msgspec.structs.replace(HEADER, config=config))
    assert (run.header().config.plugins, run.header().config.save) == (("/lat?/ä.py",), "/lat?")
    assert msgspec.structs.replace(run.header(), config=HEADER.config) == HEADER


@pytest.mark.parametrize("name", ["copy", "..", HEADER.cell + "-copy"])
def test_nothing_is_written_for_a_run_under_another_name(run, name):
    other = RunDirectory(run.path.parent / name)
    other.create(HEADER)
    before = other.run_json.read_bytes()
    with pytest.raises(UserError, match=f"run.json is of cell {HEADER.cell} and lies in the directory of "):
        other.update(status="done")
    assert other.run_json.read_bytes() == before
    assert other.header() == HEADER


def test_the_name_of_a_directory_is_its_last_one_however_it_is_typed(run, monkeypatch):
    monkeypatch.chdir(run.path)
    for typed in (".", f"../{HEADER.cell}", f"../../deep/{HEADER.cell}/."):
        assert RunDirectory(Path(typed)).own_header() == HEADER


def test_a_directory_without_a_header_is_no_run(tmp_path):
    run = RunDirectory(tmp_path)
    assert not run.exists()
    assert run.events() == []
    with pytest.raises(UserError, match=r"no run in .*run\.json is missing"):
        run.header()


def test_evaluations_have_the_same_digest_when_they_are_read(run):
    """A worker may have whole numbers where a reader has floats."""
    made = [evaluation(0, 0, 1), evaluation(10, 1.5, 1 / 3), evaluation(20, 3, None)]
    for event in made:
        run.append(event)
    digests = [reduce(digest_with, events, "") for events in (made, run.events())]
    assert digests[0] == digests[1]
    others = [made[:2], made[::-1], [*made[:2], evaluation(20, 3, 0)]]
    assert len({digests[0], *(reduce(digest_with, events, "") for events in others)}) == 4


@pytest.mark.parametrize("text", ["", "{", "\x00\x00", '{"schema": 2'])
def test_a_header_that_is_not_json_is_named(run, text):
    run.run_json.write_text(text)
    with pytest.raises(UserError, match=r"run\.json: not JSON .*delete .* to run the cell again"):
        run.header()


@pytest.mark.parametrize("text", ['{"schema": 1}', '{"schema": [1]}'])
def test_a_header_of_another_schema_is_refused(run, text):
    run.run_json.write_text(text)
    with pytest.raises(UserError, match=r"schema (1|\[1\]), this istbench reads 2; use .* another --out"):
        run.header()


def test_events_come_back_in_order(run):
    events = [
        start(time="now"),
        evaluation(5, 0.5, 0.25),
        evaluation(6, 0.6, None),
        Stop(status="done", step=6, time="later"),
    ]
    for event in events:
        run.append(event)
    assert run.events() == events


@pytest.mark.parametrize("bound", ["bytes", "lines"])
def test_a_run_writes_no_more_events_than_a_reader_takes(run, monkeypatch, bound):
    monkeypatch.setattr(store, "MOST_EVENTS_BYTES", END_BYTES + 2000 if bound == "bytes" else 10**6)
    monkeypatch.setattr(store, "MOST_EVENTS", 10**6 if bound == "bytes" else END_EVENTS + 18)
    run.append(evaluation(0, 1.0, 0.5))
    held = 18 if bound == "lines" else 2000 // run.events_jsonl.stat().st_size
    for _ in range(held - 1):
        run.append(evaluation(0, 1.0, 0.5))
    with pytest.raises(UserError, match=r"events.jsonl is full: .* run it with a larger --eval-every"):
        run.append(evaluation(0, 1.0, 0.5))
    assert len(run.events()) == held
    run.end("failed", "it is full")
    assert [type(event) for event in run.events()[held:]] == [Fault, Stop]


def test_the_lines_of_long_events_are_counted_by_their_new_part(run, monkeypatch):
    monkeypatch.setattr(store, "MOST_EVENTS", END_EVENTS + 50)
    sizes = []
    pread = os.pread
    monkeypatch.setattr(store.os, "pread", lambda file, size, at: sizes.append(size) or pread(file, size, at))
    for step in range(40):
        run.append(evaluation(step, 1.0, 0.5))
    counts = [size for size in sizes if size > 1]  # append_line reads the last byte
    assert max(counts[1:]) < counts[0]
    assert len(run.events()) == 40


def test_what_was_not_a_number_is_null(run):
    run.append(evaluation(5, 0.5, None))
    assert '"accuracy":null' in run.events_jsonl.read_text()
    assert run.events()[0].metrics == {"accuracy": None}


@pytest.mark.parametrize("torn", ['{"event": "evalu', '{"event": "stop", "status": "done"}', "\x00\x00"])
def test_a_torn_last_line_is_ignored_and_then_healed(run, torn):
    run.append(start())
    with run.events_jsonl.open("a") as file:
        file.write(torn)
    assert run.events() == [start()]
    run.append(resume(0))
    assert run.events() == [start(), resume(0)]
    assert run.events_jsonl.read_text().count("\n") == 2


def test_a_torn_first_line_is_healed(run):
    run.events_jsonl.write_text('{"ev')
    run.append(start())
    assert run.events() == [start()]


@pytest.mark.parametrize("broken", ["{", "", "[]", '{"step": 1}', "\udc80"])
def test_any_other_broken_line_is_named(run, broken):
    run.append(start())
    with run.events_jsonl.open("ab") as file:
        file.write(f"{broken}\n".encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"events\.jsonl, line 2: "):
        run.events()


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/run.*choose another --out"):
        RunDirectory(tmp_path / "file" / "run").create(HEADER)
    with pytest.raises(UserError, match=r"cannot write .*events\.jsonl"):
        RunDirectory(tmp_path / "file" / "run").append(start())


def test_a_failed_write_of_the_header_keeps_the_old_one(run, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"no space left .*run the same command again to resume"):
        run.update(status="done")
    assert run.header() == HEADER
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_short_write_leaves_no_torn_line(run, monkeypatch):
    run.append(start())
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(UserError, match="no space left"):
        run.append(Stop(status="done", step=0, time="now"))
    assert run.events() == [start()]


@pytest.mark.parametrize(("fulls", "ends"), [(0, True), (3, True), (200, False)])
def test_a_write_waits_for_space_and_not_for_ever(monkeypatch, fulls, ends):
    clock = [100.0]
    monkeypatch.setattr("istbench.results.store.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("istbench.results.store.time.sleep", lambda s: clock.append(clock.pop() + s))
    left = [NoSpace("full")] * fulls

    def write():
        if left:
            raise left.pop()

    if ends:
        assert wait_for_space(write) == pytest.approx(0.1 * fulls)
    else:
        with pytest.raises(NoSpace, match="full"):
            wait_for_space(write)
        assert clock[0] == pytest.approx(110, abs=0.2)


@pytest.fixture
def tiny_disk(tmp_path):
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"cannot mount a tmpfs here: {error}")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True, timeout=10)


@pytest.mark.processes
def test_a_full_disk_loses_nothing_recorded(tiny_disk):
    run = RunDirectory(tiny_disk / HEADER.cell)
    run.create(HEADER)
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(30_000))
    written = 0
    try:
        while True:
            run.append(resume(written, damage="x" * 900))
            written += 1
    except UserError as error:
        assert "no space left" in str(error)  # noqa: PT017  (the loop ends in it)
    assert [event.step for event in run.events()] == list(range(written))
    with pytest.raises(UserError, match="no space left"):
        run.update(status="failed", error="x" * 8000)
    assert run.header() == HEADER
    ballast.unlink()
    run.update(status="done", result=RESULT)
    run.append(Stop(status="done", step=written, time="now"))
    assert run.header().status == "done"
    assert run.events()[-1] == Stop(status="done", step=written, time="now")


APPENDER = """
import sys
from pathlib import Path
from fake_runs import resume
from istbench.results.store import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
first = len(run.events())
for step in range(first, 10**9):
    run.append(resume(step, damage="x" * 5000))
    print(step, flush=True)
"""


@pytest.mark.processes
def test_kill_9_loses_at_most_the_line_being_written(run):
    for kill in range(4):
        command = [sys.executable, "-c", APPENDER, str(run.path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(fake_runs.__file__).parent)
        process.stdout.readline()
        time.sleep(0.02 + 0.017 * kill)
        os.kill(process.pid, signal.SIGKILL)
        told = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        steps = [event.step for event in run.events()]
        assert steps == list(range(len(steps)))
        assert len(steps) >= int(told[-1] if told else 0) + 1
    run.append(Note(message="after"))
    assert json.loads(run.events_jsonl.read_text().splitlines()[-1]) == {"event": "note", "message": "after"}
