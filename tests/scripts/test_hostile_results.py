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


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A directory with a good folder, which is trained once."""
    return tmp_path_factory.mktemp("strangers")


@pytest.fixture
def strangers(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    return importlib.import_module("strangers")


def harm(out, kinds, commands):
    """The commands that did harm, of all that the program walked."""
    words = [str(out), f"--kinds={kinds}", f"--commands={commands}", "--limit=600"]
    done = subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads((out / "strangers.json").read_text())
    assert {one["kind"] for one in seen} == set(kinds.split(","))
    return [
        one
        for one in seen
        if one["executed"] or one["changed"] or one["traceback"] or one["status"] in ("late", 99)
    ]


def test_commands_that_read_do_no_harm(good):
    assert harm(good, READ, READING) == []


def test_commands_that_train_do_no_harm(good):
    assert harm(good, WRITTEN, "retrace") == []
    assert harm(good, "save-outside,checkpoint-names,hard-links,fifos-beside", "run-resume") == []
    assert harm(good, "jobs-elsewhere", "compare-jobs") == []


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
