"""The run directory survives what happens to disks and processes."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from istbench.errors import UserError
from istbench.results.store import SCHEMA, RunDirectory

HEADER = {"schema": SCHEMA, "cell": "toy-ddp", "status": "running", "error": None}


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "deep" / "run")
    directory.create(HEADER)
    return directory


def test_a_header_is_read_back_and_updated(run):
    assert run.exists()
    run.update(status="done", result={"final": {"accuracy": 0.5}})
    assert run.header() == {**HEADER, "status": "done", "result": {"final": {"accuracy": 0.5}}}
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_directory_without_a_header_is_no_run(tmp_path):
    run = RunDirectory(tmp_path)
    assert not run.exists()
    assert run.events() == []
    with pytest.raises(UserError, match=r"no run in .*run\.json is missing"):
        run.header()


@pytest.mark.parametrize("text", ["", "{", "\x00\x00", '{"schema": 1'])
def test_a_header_that_is_not_json_is_named(run, text):
    run.run_json.write_text(text)
    with pytest.raises(UserError, match=r"run\.json is not JSON .*delete .* to run it anew"):
        run.header()


@pytest.mark.parametrize("text", ['{"schema": 2}', "{}", "[]", "3"])
def test_a_header_of_another_schema_is_refused(run, text):
    run.run_json.write_text(text)
    with pytest.raises(UserError, match=r"schema (2|None), this istbench reads 1; use .* another --out"):
        run.header()


def test_events_come_back_in_order(run):
    events = [{"event": "start", "step": 0}, {"event": "evaluation", "step": 5, "metrics": {"a": 0.25}}]
    for event in events:
        run.append(event)
    assert run.events() == events


def test_what_json_lacks_is_null_and_metrics_come_back_as_nan(run):
    run.append({"event": "evaluation", "train_loss": math.inf, "metrics": {"accuracy": math.nan}})
    assert "NaN" not in run.events_jsonl.read_text()
    (event,) = run.events()
    assert event["train_loss"] is None
    assert math.isnan(event["metrics"]["accuracy"])
    run.update(result={"final": {"accuracy": math.nan}})
    assert run.header()["result"] == {"final": {"accuracy": None}}


@pytest.mark.parametrize("torn", ['{"event": "evalu', '{"event": "stop"}', "\x00\x00"])
def test_a_torn_last_line_is_ignored_and_then_healed(run, torn):
    run.append({"event": "start"})
    with run.events_jsonl.open("a") as file:
        file.write(torn)
    assert run.events() == [{"event": "start"}]
    run.append({"event": "resume", "step": 0})
    assert [event["event"] for event in run.events()] == ["start", "resume"]
    assert run.events_jsonl.read_text().count("\n") == 2


def test_a_torn_first_line_is_healed(run):
    run.events_jsonl.write_text('{"ev')
    run.append({"event": "start"})
    assert run.events() == [{"event": "start"}]


@pytest.mark.parametrize("broken", ["{", "", "[]", '{"step": 1}', "\udc80"])
def test_any_other_broken_line_is_named(run, broken):
    run.events_jsonl.write_bytes(f'{{"event": "start"}}\n{broken}\n'.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"events\.jsonl, line 2: "):
        run.events()


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/run.*choose another --out"):
        RunDirectory(tmp_path / "file" / "run").create(HEADER)
    with pytest.raises(UserError, match=r"cannot write .*events\.jsonl"):
        RunDirectory(tmp_path / "file" / "run").append({"event": "start"})


def test_a_failed_write_of_the_header_keeps_the_old_one(run, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"no space left .*run the same command again to resume"):
        run.update(status="done")
    assert run.header() == HEADER
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_short_write_leaves_no_torn_line(run, monkeypatch):
    run.append({"event": "start"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(UserError, match="no space left"):
        run.append({"event": "stop"})
    assert run.events_jsonl.read_text() == '{"event": "start"}\n'


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


def test_a_full_disk_loses_nothing_recorded(tiny_disk):
    run = RunDirectory(tiny_disk / "run")
    run.create(HEADER)
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(30_000))
    written = 0
    try:
        while True:
            run.append({"event": "evaluation", "step": written, "padding": "x" * 900})
            written += 1
    except UserError as error:
        assert "no space left" in str(error)  # noqa: PT017  (the loop ends in it)
    assert [event["step"] for event in run.events()] == list(range(written))
    with pytest.raises(UserError, match="no space left"):
        run.update(status="failed", error="x" * 8000)
    assert run.header() == HEADER
    ballast.unlink()
    run.update(status="done")
    run.append({"event": "stop", "step": written})
    assert run.header()["status"] == "done"
    assert run.events()[-1] == {"event": "stop", "step": written}


APPENDER = """
import sys
from pathlib import Path
from istbench.results.store import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
first = len(run.events())
for step in range(first, 10**9):
    run.append({"event": "evaluation", "step": step, "padding": "x" * 5000})
    print(step, flush=True)
"""


def test_kill_9_loses_at_most_the_line_being_written(run):
    for kill in range(4):
        process = subprocess.Popen([sys.executable, "-c", APPENDER, str(run.path)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.02 + 0.017 * kill)
        os.kill(process.pid, signal.SIGKILL)
        told = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        steps = [event["step"] for event in run.events()]
        assert steps == list(range(len(steps)))
        assert len(steps) >= int(told[-1] if told else 0) + 1
    run.append({"event": "stop"})
    assert json.loads(run.events_jsonl.read_text().splitlines()[-1]) == {"event": "stop"}
