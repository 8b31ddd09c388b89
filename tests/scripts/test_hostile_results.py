"""No command executes a hostile results folder, writes outside of it or prints a traceback."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "scripts" / "bench" / "strangers.py"

READ = (
    "plugin,plugin-up,plugin-with-digest,workload-path,workload-in-place,task-by-name,suite,cell-up,cell-beside,"
    "cell-device,cell-long,cell-right-to-left,renamed,sinks-outside,labels,nested,trace-of-pickles,link-mllog,"
    "link-timeline,resultless,formula"
)
READING = "report-csv,replay-nodes,timeline,export-mllog,export-out,compare-suite,run-done"
WRITTEN = "plugin,cell-up,cell-up-two,save-outside,standing-in-it,link-trace.npz"


RESUMED = "save-outside,checkpoint-names,hard-links,fifos-beside"
WALKS = {READING: READ, "retrace": WRITTEN, "run-resume": RESUMED, "compare-jobs": "jobs-elsewhere"}
"""By commands, the kinds of folders that they read."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All that the program walked: by one start, over one good folder."""
    out = tmp_path_factory.mktemp("strangers")
    words = [word for commands, kinds in WALKS.items() for word in (f"--kinds={kinds}", f"--commands={commands}")]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(out), "--limit=600", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads((out / "strangers.json").read_text())


@pytest.fixture
def strangers(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    return importlib.import_module("strangers")


@pytest.mark.processes
@pytest.mark.parametrize("commands", WALKS)
def test_commands_do_no_harm(seen, commands):
    own = [one for one in seen if one["command"] in commands.split(",")]
    assert {one["kind"] for one in own} == set(WALKS[commands].split(","))
    assert [
        one for one in own if one["executed"] or one["changed"] or one["traceback"] or one["status"] in ("late", 99)
    ] == []


def test_the_program_sees_harm(strangers, tmp_path):
    good = tmp_path / "good"
    (good / "runs" / "cell").mkdir(parents=True)
    (good / "runs" / "cell" / "run.json").write_text('{"config": {}}')
    with strangers.prepared(good, tmp_path / "box", strangers.KINDS["plugin"], strangers.COMMANDS["report"]) as box:
        before = strangers.snapshot(box)
        (box.results / "runs" / "cell" / "own").touch()
        (box.user / "out").mkdir()
        assert strangers.snapshot(box) == before
        exec((box.results / "evil.py").read_text())
        assert box.canary.read_text() == "x"
        (box.home / "thesis.txt").write_text("changed")
        (box.user / "made").touch()
        after = strangers.snapshot(box)
        assert {path for path in {*before, *after} if before.get(path) != after.get(path)} == {
            "home/thesis.txt", "user/made",
        }  # fmt: skip
