"""`istbench advise` from the command line to its answer, on a toy workload that really trains."""

import json
import shlex

import msgspec
import pytest

from istbench.advise.answer import Advice
from istbench.advise.saved import load_advice

ASKED = ("toy", "--nodes", 2, "--methods", "local_sgd", "--seeds", 1, "--target", 0.5, "--minutes", 0.6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("toyy", "--nodes", 2, "--bandwidth", "1gbit"), "toyy"),
        (("toy", "--nodes", 2, "--bandwidth", "1gbit", "--methods", "istt"), "istt"),
        (("toy", "--nodes", 2, "--bandwidth", "1gbit", "--set", "local_stepz=4"), "local_stepz"),
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


def test_the_answer_names_a_command_whose_runs_are_kept_and_shown(istbench, tmp_path):
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
    assert {"ddp"} <= {one["label"] for one in [found["best"], *found["others"]]}

    # The same command trains nothing again, gives the same answer, and leads with the command line.
    cells = {place: place.stat().st_mtime_ns for place in out.rglob("events.jsonl")}
    status, text, _ = istbench(*words, "--html", tmp_path / "page.html")
    assert status == 0
    assert text.splitlines()[0] == shlex.join(found["best"]["command"])
    assert load_advice(out).best.label == found["best"]["label"]
    assert cells
    assert {place: place.stat().st_mtime_ns for place in cells} == cells
    assert "Which method: toy" in (tmp_path / "page.html").read_text()
    status, table, _ = istbench("report", out)
    assert status == 0
    assert "local_sgd" in table
