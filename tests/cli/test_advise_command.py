"""`istbench advise` from the command line to its answer, on a toy workload that really trains."""

import json
import re
import shlex

import msgspec
import pytest

from istbench.base.errors import RunFailed, UserError
from istbench.cli import advise_command
from istbench.launch.backends.here import Here
from istbench.studies.advise.advice_file import load_advice
from istbench.studies.advise.advice_text import advice_text
from istbench.studies.advise.answer import Advice, advise
from istbench.studies.advise.measure import MeasuredCandidate, read_checked
from tests.studies.advise.probes import ACCURACY, LINKS, candidate

ASKED = ("toy", "--nodes", 2, "--methods", "local_sgd", "--seeds", 1, "--target", 0.5, "--minutes", 0.6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("toyy", "--nodes", 2, "--bandwidth", "1gbit"), "toyy"),
        (("toy", "--nodes", 2, "--bandwidth", "1gbit", "--methods", "istt"), "istt"),
        (("toy", "--nodes", 2, "--bandwidth", "1gbit", "--set", "local_stepz=4"), "local_stepz"),
        (("toy", "--nodes", 2, "--bandwidth", "1gbit", "--set", "local_steps=many"), "local_steps"),
        (
            ("toy", "--nodes", 2, "--bandwidth", "1gbit", "--methods", "local_sgd", "--set", "local_steps=0"),
            "local_steps",
        ),
        (("toy", "--nodes", 4, "--bandwidth", "1gbit", "--measure", "--hosts", "a,b"), "4"),
        (("toy", "--nodes", 2, "--bandwidth", "fast"), "fast"),
        (("toy", "--nodes", 2), "give --bandwidth 1gbit, or --cluster"),
        (("toy", "--nodes", 2, "--cluster", "m5.2xlarge", "--measure"), "leave out --cluster"),
        (("toy", "--nodes", 2, "--bandwidth", "1gbit", "--hosts", "a,b"), "add --measure"),
    ],
)
def test_wrong_questions_are_refused_in_a_line_before_anything_trains(istbench, tmp_path, words, message):
    status, printed, said = istbench("advise", *words, "--out", tmp_path / "out")
    assert (status, printed) == (2, "")
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
def test_a_target_that_holds_before_training_is_refused_before_any_probe(istbench, tmp_path):
    words = ("advise", "toy", "--nodes", "2", "--bandwidth", "1gbit", "--methods", "local_sgd", "--target", "0.001")
    status, printed, said = istbench(*words, "--minutes", "0.4", "--out", tmp_path / "out")
    assert (status, printed) == (2, "")
    assert said.endswith("the model is at the target of 0.001 before it trains; give a harder --target\n")
    assert "candidate " not in said


@pytest.mark.processes
def test_without_a_target_one_node_names_it(istbench, tmp_path):
    words = ("advise", "toy", "--nodes", "2", "--bandwidth", "100mbit", "--methods", "local_sgd", "--seeds", "1")
    status, printed, said = istbench(*words, "--minutes", "0.4", "--out", tmp_path / "out", "--json")
    assert status in (0, 3), said
    told = [line for line in said.splitlines() if line.startswith("candidate ")]
    assert told
    for line in told:
        assert re.fullmatch(r"candidate \d+ of \d+, 0:\d\d left: .*, [\d,]+ local steps(, seed \d)?", line)
        assert len(line) <= 80
    found = json.loads(printed)
    assert found["target_from"].startswith("which one node reached in ")
    assert found["target"] == round(found["target"], 2)
    (alone,) = (one for one in [found["best"], *found["others"]] if one and one["label"] == "one node")
    assert alone["reaching"] > 0.99
    assert not alone["extrapolated"]
    assert "--nodes=1" in alone["command"] or "--nodes=2" not in alone["command"]
    text = advice_text(load_advice(tmp_path / "out"))
    assert f"({found['target_from']}; --target asks for another)" in text


@pytest.mark.processes
def test_the_answer_names_a_command_whose_runs_are_kept_and_shown(istbench, monkeypatch, tmp_path):
    out = tmp_path / "out"
    words = ("advise", *ASKED, "--bandwidth", "100mbit", "--out", out)
    status, printed, said = istbench(*words, "--json")
    assert status == 0, said
    (line,) = printed.splitlines()
    found = json.loads(line)
    assert msgspec.convert(found, Advice) == load_advice(out)
    assert 0 < found["odds"] <= 1
    assert found["best"]["low"] <= found["best"]["seconds"] <= found["best"]["high"]
    assert found["best"]["command"][:2] == ["istbench", "run"]
    nodes = {one["label"]: one["nodes"] for one in [found["best"], *found["others"]]}
    assert (nodes["ddp"], nodes["one node"]) == (2, 1)

    # With its minutes spent, the same command trains nothing again, and gives the same answer.
    (journal,) = (out / "advise").glob("*.jsonl")
    with journal.open("a") as file:
        file.write('{"type":"spent","command":"1","seconds":1000}\n')
    cells = {place: place.stat().st_mtime_ns for place in out.rglob("events.jsonl")}
    status, text, _ = istbench(*words, "--html", tmp_path / "page.html")
    assert status == 0
    assert shlex.join(found["best"]["command"]) in text.splitlines()
    assert load_advice(out).best.label == found["best"]["label"]
    assert cells
    assert {place: place.stat().st_mtime_ns for place in cells} == cells
    assert "Which method trains toy" in (tmp_path / "page.html").read_text()
    status, table, _ = istbench("report", out)
    assert status == 0
    assert "local_sgd" in table

    # Replays that the user has checked in this directory take part: these are twice as long as the truth.
    seconds = {one["label"]: one["seconds"] for one in [found["best"], *found["others"]] if one["seconds"]}
    errors = [
        {"method": method, "nodes": 2, "bandwidth": "100mbit", "measured_s": 1.0, "replayed_s": 2.0}
        for method in ("ddp", "local_sgd")
    ]
    (out / "validation").mkdir()
    (out / "validation" / "mine.json").write_text(json.dumps(errors))
    (out / "validation" / "torn.json").write_text("[")
    status, _, said = istbench(*words)
    assert status == 0
    assert "checks of replays: " in said
    assert "torn.json" in said
    (out / "validation" / "torn.json").unlink()

    # The truth comes from runs on links of this machine in place of a lab, which needs Linux and root.
    monkeypatch.setattr(advise_command, "_truth_backend", lambda *_: Here())
    status, printed, said = istbench(*words, "--measure", "--json")
    assert status == 0, said
    (line,) = printed.splitlines()
    checked = json.loads(line)
    for one in [checked["best"], *checked["others"]]:
        assert one["seconds"] is None or one["seconds"] == pytest.approx(seconds[one["label"]] / 2, rel=0.1)
    assert len(checked["truth"]) == 2
    assert checked["truth"][checked["best"]["label"]] > 0
    assert checked["regret"] >= 0
    assert checked["failures"] == {}
    (kept,) = read_checked(out / "advice.jsonl")
    assert kept.truth == checked["truth"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [(KeyboardInterrupt(), 130), (UserError("no host"), 2), (RunFailed("no cell can run"), 1), (None, 1)],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_advice_and_the_first_truth_survive_the_end_of_a_measurement(
    istbench, monkeypatch, tmp_path, ending, status, as_json
):
    """None stands for a second run that fails."""
    candidates = (candidate("ddp", baseline=True), candidate("zero", compute=0.011))
    made = advise(candidates, LINKS, workload="toy", nodes=2, metric=ACCURACY, target=0.8)

    def measure(*_):
        yield MeasuredCandidate(label="ddp", seconds=8.0)
        if ending is not None:
            raise ending
        yield MeasuredCandidate(label="zero", seconds=None, failure="the loss became nan")

    monkeypatch.setattr(advise_command, "_truth_backend", lambda *_: Here())
    monkeypatch.setattr("istbench.api.advice.advised", lambda *_, **_more: (None, made))
    monkeypatch.setattr("istbench.studies.advise.measure.measure", measure)
    words = ("toy", "--nodes", 2, "--bandwidth", "1gbit", "--measure", "--out", tmp_path)
    ended, printed, _ = istbench("advise", *words, *(["--json"] if as_json else []))
    assert ended == status
    if as_json:
        (line,) = printed.splitlines()
        found = json.loads(line)
        assert found["truth"]["ddp"] == 8.0
        assert found["failures"] == ({} if ending else {"zero": "the loss became nan"})
    else:
        assert shlex.join(made.best.command) in printed
        assert "Measured:\n  ddp: 8.00 s\n" in printed
        assert ("Regret: 0.0%" in printed) == (ending is None)
        assert ("zero failed: the loss became nan" in printed) == (ending is None)
    (kept,) = read_checked(tmp_path / "advice.jsonl")
    assert kept.truth["ddp"] == 8.0
