"""`istbench tune`, on real processes."""

import json
import os
import tomllib

import pytest

from tests.small_task import write_task

pytestmark = pytest.mark.processes

SHORT = ("--nodes", "2", "--steps", "8", "--seed", "5")


def cells(out):
    return {path.name: (path / "run.json").stat().st_mtime_ns for path in (out / "runs").iterdir()}


def test_trials_resume_grow_and_become_a_suite_that_compare_reads(istbench, tmp_path):
    out, suite = tmp_path / "tuning", tmp_path / "tuned.toml"
    asked = ("tune", "--methods", "ddp,local_sgd", "--workload", "toy", *SHORT, "--out", str(out), "--json")
    status, _, err = istbench(*asked, "--trials", "1")
    assert status == 0, err
    before = cells(out)
    assert len(before) == 2
    status, out_json, err = istbench(
        *asked, "--trials", "2", "--write", suite, "--seeds", "1", "--suite-epochs", "2"
    )
    assert status == 0, err
    assert {name: cells(out)[name] for name in before} == before, "trials that are done were trained again"
    assert len(cells(out)) == 4

    found = json.loads(out_json)
    assert (found["judged_by"], found["trials"], found["held_out"]) == ("accuracy after 8 steps", 2, 0.1)
    assert "test split unused" in found["data_seen"]
    for contest in found["methods"]:
        values = [trial["accuracy"] for trial in contest["trials"]]
        assert contest["best"]["accuracy"] == max(values)
        assert [set(trial["options"]) for trial in contest["trials"]] == [set(), {"lr"}]
        for trial in contest["trials"]:
            header = json.loads((out / "runs" / trial["cell"] / "run.json").read_text())
            assert header["result"]["final"]["accuracy"] == trial["accuracy"]
            assert header["data_source"]["test"] == 51
            assert header["config"]["held_out"] == 0.1

    (table,) = tomllib.loads(suite.read_text())["suite"]
    assert table["tuning"]["trials"] == 2
    assert table["run"] == {"epochs": 2.0}
    assert [entry["method"] for entry in table["methods"]] == ["ddp", "local_sgd"]
    status, said, err = istbench("compare", str(suite), "--out", str(tmp_path / "compared"), "--explain")
    assert status == 0, err
    assert "Tuned: 2 trials each, by `istbench tune`" in " ".join(said.split())
    assert "Tuning: none" not in said
    for path in (tmp_path / "compared" / "runs").iterdir():
        header = json.loads((path / "run.json").read_text())
        assert (header["config"]["tuned"], header["data_source"]["test"]) == (2, 128)


def test_seconds_to_a_target_judge_without_a_look_at_the_test_split(istbench, tmp_path):
    file = write_task(tmp_path / "closed.py")
    guard = "def data(train):\n    if not train:\n        raise RuntimeError('the test split was read')\n"
    file.write_text(file.read_text().replace("def data(train):\n", guard))
    status, said, err = istbench(
        "tune", "--methods", "local_sgd", "--workload", str(file), "--nodes", "2", "--trials", "2", "--steps", "90",
        "--eval-every", "30", "--range", "lr=0.2:0.8", "--range", "local_steps=2:8", "--target", "0.5",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert status == 0, err
    said = " ".join(said.split())
    assert "by seconds to accuracy 0.5 on m5.2xlarge, replayed" in said
    assert "the test split unused" in said


def test_a_trial_that_diverges_counts_and_is_no_failure(istbench, tmp_path):
    status, said, err = istbench(
        "tune", "--methods", "ddp", "--workload", "toy", *SHORT, "--trials", "2", "--range", "lr=1e5:1e6",
        "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert status == 0, err
    assert "diverged, the loss became" in err
    (contest,) = json.loads(said)["methods"]
    defaults, other = contest["trials"]
    assert contest["best"] == defaults
    assert (other["failed"], other["accuracy"]) == (False, None)
    assert json.loads((tmp_path / "runs" / other["cell"] / "run.json").read_text())["status"] == "failed"


CRASHING = """
from dataclasses import dataclass
from istbench.methods.data_parallel import DataParallel


class Crash(DataParallel):
    \"\"\"Crashes.\"\"\"

    name = "crash"

    @dataclass(frozen=True, kw_only=True)
    class Options(DataParallel.Options):
        \"\"\"Options.\"\"\"

    def step(self, batch):
        raise ValueError("crashed")
"""


def test_a_torn_header_and_a_method_that_crashes_do_not_stop_the_others(istbench, tmp_path):
    plugin, out, suite = tmp_path / "crash.py", tmp_path / "out", tmp_path / "tuned.toml"
    plugin.write_text(CRASHING)
    asked = ("tune", "--workload", "toy", "--nodes", "1", "--steps", "4", "--threads", "1", "--out", str(out))
    status, _, err = istbench(*asked, "--methods", "ddp", "--trials", "2")
    assert status == 0, err
    torn = sorted((out / "runs").iterdir())[0] / "run.json"
    torn.write_text(torn.read_text()[:100])
    status, said, err = istbench(
        *asked, "--methods", "ddp,crash", "--trials", "2", "--plugin", str(plugin), "--write", str(suite), "--json"
    )
    assert status == 1, err
    assert "[4/4]" in err
    assert f"{torn}: not JSON" in err
    assert f"`istbench compare {suite} --plugin={plugin}` trains" in err
    assert f"{suite} leaves out crash on 1 node: no trial has a result" in err
    (ddp, crash) = json.loads(said)["methods"]
    assert sorted(trial["failed"] for trial in ddp["trials"]) == [False, True]
    assert crash["best"] is None
    assert [entry["method"] for entry in tomllib.loads(suite.read_text())["suite"][0]["methods"]] == ["ddp"]


def test_wrong_use_is_refused_before_anything_trains(istbench, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for arguments, expected in (
        (("--cluster", "m5.2xlarge"), "add --target LEVEL"),
        (("--range", "lerning=1:2"), "lr"),
        (("--range", "lr=2:1"), "2.0 is not below 1.0"),
        (("--set", "lr=0.1"), "method 'ddp' has nothing to tune here: take one --set out"),
        (("--suite-epochs", "2"), "add --write FILE.toml"),
        (("--seeds", "2"), "--seeds is of the written suite; add --write FILE.toml"),
        (("--suite-epochs", "-2", "--write", "s.toml"), "--suite-epochs must be a number above 0"),
        (("--write", str(tmp_path)), "is a directory; name a file"),
        (("--write", str(tmp_path / "pipe")), "is no ordinary file; name another"),
    ):
        status, _, err = istbench(
            "tune", "--methods", "ddp", "--workload", "toy", *SHORT, "--out", str(tmp_path), *arguments
        )
        assert status == 2
        assert expected in err
        assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
