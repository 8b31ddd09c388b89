"""`istbench faults` as a user types it: real workers that are killed and stopped."""

import json

import pytest
from said import one_line
from small_task import TASK

from istbench.results.load import load_runs
from istbench.results.store import RunDirectory

# Its steps wait, so that a fault finds the run at its step on a busy machine too.
TASK_OF_WAITS = f"""{TASK}
import time

trained = loss

def loss(model, batch):
    time.sleep(0.0 if batch[0].is_meta else 0.004)
    return trained(model, batch)
"""
SUITE = """
workload = "waits"
methods = ["local_sgd"]
nodes = [2]
[run]
steps = 300
eval_every = 50
checkpoint_every_s = 0
threads = 1
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(SUITE)
    (tmp_path / "waits.py").write_text(TASK_OF_WAITS)
    return path


@pytest.mark.processes
def test_a_run_with_faults_ends_in_the_same_weights_and_its_seconds_add_up(tmp_path, istbench, suite):
    words = ["faults", suite, "--schedule=poisson:4", "--types=damage,stop:0.2s", "--schedule-seed=5"]
    words += ["--plugin", tmp_path / "waits.py", "--out", tmp_path / "out", "--json"]
    status, out, said = istbench(*words)
    assert status == 0, said
    free, faulty = json.loads(out)["rows"]
    assert (free["faults"], faulty["schedule"]) == (0, "poisson:4 of damage, stop:0.2s, seed 5")
    (run,) = faulty["runs"]
    assert [hit["kind"] for hit in run["hits"]][:4] == ["damage", "stop"] * 2
    assert faulty["simulated_times"] > 1
    wall = run["wall"]
    assert sum(value for part, value in wall.items() if part != "seconds") == pytest.approx(wall["seconds"])
    assert wall["restarting_s"] > 0
    assert wall["lost_s"] > 0
    (whole,), problems = load_runs(tmp_path / "out")
    assert problems == ["1 run with faults, which `istbench report` shows"]
    disturbed = RunDirectory.of(tmp_path / "out", run["cell"]).header()
    assert disturbed.result.weights_sha256 == whole.header.result.weights_sha256
    assert disturbed.cell != whole.header.cell, "the schedule is a part of the cell"
    assert istbench(*words)[1] == out, "a second command trains nothing"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "kil@3s"], "unknown fault"),
        (["--schedule", "poisson:-2"], "poisson"),
        (["--schedule", "down@3s"], "run `istbench lab --nodes N -- faults ...` as root"),
        (["--schedule", "host@3s"], "needs a lab with --host-nodes"),
        (["--types", "down"], "needs a shaped link"),
        (["--types", "kill:3s"], "kill does not last"),
    ],
)
def test_a_wrong_schedule_is_refused_before_anything_trains(tmp_path, istbench, suite, words, said):
    status, _, error = istbench("faults", suite, *words, "--out", tmp_path / "out")
    assert status == 2
    assert said in one_line(error)
    assert not (tmp_path / "out").exists()
