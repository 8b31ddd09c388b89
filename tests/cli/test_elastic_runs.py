"""A run that loses a node, goes on with who is left, and gets the node back: real processes."""

import json

import pytest

from istbench.results.events import Note
from istbench.results.store import RunDirectory

# Node 1 dies at its 50th step, once.
DYING = """
import os, signal
from pathlib import Path
from istbench.methods.ist import IndependentSubnetTraining
class Dying(IndependentSubnetTraining):
    name = "dying"
    taken = 0
    def step(self, batch):
        self.taken += 1
        died = Path(__file__).with_suffix(".died")
        if self.taken == 50 and os.environ["RANK"] == "1" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(batch)
"""


@pytest.mark.processes
def test_a_run_shrinks_and_grows_and_ends_after_the_same_samples(tmp_path, istbench, monkeypatch):
    monkeypatch.setattr("istbench.launch.cells.restarts.BACK_S", 0.5)
    (tmp_path / "dying.py").write_text(DYING)
    words = ["--workload", "toy", "--method", "dying", "--plugin", tmp_path / "dying.py", "--set", "momentum=0.9"]
    words += ["--steps", 600, "--eval-every", 20, "--set", "local_steps=10", "--checkpoint-every", 0]
    status, out, said = istbench(
        "run", *words, "--nodes", 3, "--elastic", "2:3", "--restarts", 1, "--out", tmp_path, "--json"
    )
    assert status == 0, said
    found = json.loads(out)
    assert [(change["before"], change["after"]) for change in found["resizes"]] == [(3, 2), (2, 3)]
    shrunk, grown = found["resizes"]
    assert 0 < shrunk["step"] < grown["step"]
    assert shrunk["seconds"] > 0 < grown["seconds"]
    # Two nodes take three local steps for two of three nodes.
    before = 48 * shrunk["step"] + 32 * (grown["step"] - shrunk["step"])
    assert found["steps"] == grown["step"] - (before - 600 * 48) // 48
    assert found["samples"] == before + 48 * (found["steps"] - grown["step"])
    assert 0 <= found["samples"] - 600 * 48 < 48
    assert found["elastic"] == "2:3"
    by_rank = {node["rank"]: node["computing_s"] + node["waiting_s"] for node in found["node_seconds"]}
    assert by_rank[0] == by_rank[1] == pytest.approx(found["train_s"])
    assert 0 < by_rank[2] < by_rank[0]
    (run,) = (RunDirectory(path) for path in tmp_path.glob("runs/*"))
    assert "elastic-n2-3" in run.path.name
    notes = [event.message for event in run.events() if isinstance(event, Note)]
    assert any("on 2 nodes: 32 samples in a step, not 48; the learning rate stays" in note for note in notes)
    assert any("on 3 nodes: 48 samples in a step, not 32; the learning rate stays" in note for note in notes)
