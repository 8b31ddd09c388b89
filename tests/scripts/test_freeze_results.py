"""A frozen reference of several groups."""

import re
import sys
from pathlib import Path

from fake_runs import header, ramp, write_run

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

import freeze_results  # noqa: E402


def test_groups_of_one_workload_keep_pictures_of_their_own(results, tmp_path, monkeypatch):
    write_run(results, header("ddp"), ramp(9.0))
    write_run(results, header("ddp", cell="longer", budget="60 epochs"), ramp(18.0))
    write_run(results, header("ddp", workload="toy"), ramp(9.0))
    target = tmp_path / "reference"
    monkeypatch.setattr(sys, "argv", ["freeze_results.py", str(results), str(target)])
    freeze_results.main()
    pictures = sorted(path.name for path in target.glob("*-over-time.png"))
    assert len(pictures) == 3
    assert pictures[-1] == "toy-over-time.png"
    assert all(re.fullmatch(r"speech-[0-9a-f]{6}-over-time.png", name) for name in pictures[:2])
    linked = re.findall(r"\((.*?over-time.png)\)", (target / "README.md").read_text())
    assert sorted(linked) == pictures


def test_curves_over_local_steps_stand_beside_those_over_time(results, tmp_path, monkeypatch):
    write_run(results, header("ddp", workload="toy"), ramp(9.0))
    target = tmp_path / "reference"
    monkeypatch.setattr(
        sys, "argv", ["freeze_results.py", str(results), str(target), "--along", "steps", "traffic"]
    )
    freeze_results.main()
    linked = re.findall(r"\((toy-over-.*?)\)", (target / "README.md").read_text())
    assert linked == ["toy-over-time.png", "toy-over-steps.png", "toy-over-traffic.png"]
    assert all((target / name).exists() for name in linked)
