"""Runs that go wrong in training: what is said, and what is left. Real processes."""

import json

import pytest

from istbench.results.events import Evaluation, Fault
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

DIVERGES = """
import os, torch
from istbench.workloads.toy import Toy

class Diverges(Toy):
    "Its loss is no number on node 1 from step 7 on; the first pass of all warms up."
    name = "diverges"
    passes = -1

    def loss(self, model, batch):
        Diverges.passes += 1
        loss = super().loss(model, batch)
        return loss * torch.nan if os.environ["RANK"] == "1" and self.passes >= 7 else loss
"""


def test_a_loss_that_is_no_number_ends_the_run_by_step_and_node_and_keeps_what_came_before(tmp_path, istbench):
    plugin = tmp_path / "diverges.py"
    plugin.write_text(DIVERGES)
    status, _, error = istbench(
        "run", "--plugin", plugin, "--workload", "diverges", "--method", "local_sgd", "--nodes", 2, "--steps", 20,
        "--eval-every", 5, "--set", "local_steps=5", "--out", tmp_path,
    )  # fmt: skip
    said = "the loss became nan at step 7 on node 1; lower the learning rate (--set lr=...)"
    assert status == 1, error
    assert error.splitlines()[-1] == f"istbench: {said}"
    (path,) = tmp_path.glob("runs/*")
    header = json.loads((path / "run.json").read_text())
    assert (header["status"], header["error"]) == ("failed", said)
    events = RunDirectory(path).events()
    assert [event.step for event in events if isinstance(event, Evaluation)] == [0, 5]
    assert [event.message for event in events if isinstance(event, Fault)] == [said]
