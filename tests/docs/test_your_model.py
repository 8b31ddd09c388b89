"""The task file in the documentation works as written."""

import re
from pathlib import Path

import numpy as np

from istbench.node.registry import build_workload

PAGE = Path(__file__).parents[2] / "docs" / "your-model.md"


def test_the_documented_task_file_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = np.c_[np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 3]
    np.savetxt("table.csv", table, "%.3f", ",", header="a,b,c,d,class", comments="")
    code, groups = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_task.py").write_text(f"{code}\n\n{groups}")
    workload = build_workload("my_task.py", {})
    workload.open(workload.prepare(None, tmp_path, lambda *_: None))
    workload.try_out()
    (group,) = workload.neuron_groups(workload.build_model())
    assert (group.size, workload.batch_size, workload.train_size) == (64, 64, 32)
