"""New runs for `istbench report --example` take the place of those in the package."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from freeze_example import freeze

from istbench.base.shipped import example_results
from istbench.results.load import load_runs


def test_a_new_recording_takes_its_place(tmp_path):
    freeze(example_results(), tmp_path / "copy")
    assert {run.header.cell for run in load_runs(tmp_path / "copy")[0]} == {
        path.name for path in (example_results() / "runs").iterdir()
    }
    (damaged,) = (tmp_path / "copy/runs").glob("*-ddp-n2-s1-*")
    (damaged / "events.jsonl").write_text("")
    with pytest.raises(SystemExit, match="ddp-n2-s1"):
        freeze(tmp_path / "copy", tmp_path / "other")
    assert not (tmp_path / "other").exists()
