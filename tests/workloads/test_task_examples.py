"""The task files in configs/tasks work as written, on tiny data in the working directory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from istbench.node.registry import build_workload

TASKS = Path(__file__).parents[2] / "configs" / "tasks"
CHANCE = {"table": (0.0, 1.0), "characters": (5.0, 6.5), "images": (0.0, 1.0)}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A directory `data` with a table, a text and some photos."""
    monkeypatch.chdir(tmp_path)
    random, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    rows = random.normal(size=(60, 4))
    np.savetxt(
        folder / "table.csv", np.c_[rows, np.arange(60) % 3], "%.3f", ",", header="a,b,c,d,class", comments=""
    )
    (folder / "input.txt").write_bytes(bytes(random.integers(32, 127, 900, dtype=np.uint8)))
    for split in ("train", "test"):
        for name in ("cats", "dogs"):
            (folder / "photos" / split / name).mkdir(parents=True)
            for number in range(3):
                pixels = random.integers(0, 255, (40, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / split / name / f"{number}.jpg")


@pytest.mark.parametrize("name", ["table", "characters", "images"])
def test_an_example_has_under_30_lines_and_trains(name, data, tmp_path):
    path = TASKS / f"{name}.py"
    assert len(path.read_text().splitlines()) < 30
    workload = build_workload(str(path), {})
    workload.open(workload.prepare(None, tmp_path, lambda *_: None))
    workload.try_out()
    with torch.no_grad():
        found = workload.evaluate(workload.task_model.built(0).eval(), workload.test_batches())
    least, most = CHANCE[name]
    assert least <= float(found[workload.metric]) <= most
