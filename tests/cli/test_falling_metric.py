"""A workload of one's own with a loss as its metric, from the first run to the report."""

import json
from pathlib import Path

import pytest

from istbench.results.load import load_run
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

# Its training fails once, where a file of this name lies beside it.
BY_LOSS = """
from pathlib import Path
from istbench.workloads.toy import Toy

class ByLoss(Toy):
    name = "by_loss"
    metric = "loss"
    lower_is_better = True
    unit = "nats"
    targets = (0.8, 1.2)
    passes = 0

    def loss(self, model, batch):
        ByLoss.passes += 1
        if ByLoss.passes == 40 and Path(__file__).with_name("fails").exists():
            raise RuntimeError("as asked")
        return super().loss(model, batch)

    def evaluate(self, model, batches):
        return {name: value for name, value in super().evaluate(model, batches).items() if name == "loss"}
"""


def test_a_loss_is_trained_to_its_target_resumed_and_reported(tmp_path, istbench):
    plugin, out = tmp_path / "by_loss.py", tmp_path / "out"
    plugin.write_text(BY_LOSS)
    run = ["run", "--plugin", plugin, "--workload", "by_loss", "--method", "ddp", "--eval-every", 8, "--out", out]
    status, _, said = istbench(*run, "--steps", 4, "--target", 0.01)
    assert status == 3
    assert "istbench: target 0.01 not reached: best loss 1." in said

    stopped = [*run, "--epochs", 50, "--target", 0.7, "--checkpoint-every", 0]
    (tmp_path / "fails").touch()
    status, _, said = istbench(*stopped)
    assert (status, "by_loss.py" in said) == (1, True), said
    (tmp_path / "fails").unlink()
    (failed,) = (path for path in out.glob("runs/*/run.json") if '"failed"' in path.read_text())
    assert load_run(RunDirectory(failed.parent)).curve.metric.lower_is_better

    status, printed, said = istbench(*stopped, "--json")
    assert status == 0, said
    result = json.loads(printed)
    assert Path(result["run_dir"]) == failed.parent
    assert (result["metric"], result["lower_is_better"], result["metric_unit"]) == ("loss", True, "nats")
    assert [target["level"] for target in result["targets"]] == [1.2, 0.8, 0.7]
    seconds = [target["train_s"] for target in result["targets"]]
    assert seconds == sorted(seconds)
    found = load_run(RunDirectory(failed.parent))
    values = found.curve.values
    assert values[-1] <= 0.7 < min(values[:-1])
    assert found.curve.best() == found.curve.final() == result["final"]["loss"]
    assert '"resume"' in (failed.parent / "events.jsonl").read_text()

    status, printed, said = istbench("report", out, "--format", "json", "--no-pictures", "--workload", "by_loss")
    assert status == 0, said
    (table,) = [
        table
        for table in json.loads(printed)["tables"]
        if table["context"]["clock"] == "train_s" and "0.7" in table["context"]["budget"]
    ]
    assert "Metric: loss (nats), lower is better." in table["notes"]
    assert table["rows"][0]["train_s_to_0.7"]["median"] == pytest.approx(seconds[-1])
    status, printed, _ = istbench("report", out, "--format", "json", "--no-pictures", "--levels", "1,0.75")
    rows = [row for table in json.loads(printed)["tables"] for row in table["rows"]]
    assert any(row.get("train_s_to_0.75", {}).get("reached") == 1 for row in rows)
