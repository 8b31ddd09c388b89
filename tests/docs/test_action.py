"""The action of the repository: its step runs as it stands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ssh_hosts
import warm
import yaml

ROOT = Path(__file__).parents[2]
SUITE = "--workload toy --methods ddp --nodes 1 --steps 4"


@pytest.mark.processes
def test_the_step_fails_a_build_by_its_condition_and_writes_a_summary(tmp_path):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = [step for step in action["runs"]["steps"] if step.get("name") == "Compare"]
    assert set(step["env"]) - {"ACTION"} <= {"SUITE", "FAIL_IF", "BASELINE", "OUT"}
    summary = tmp_path / "summary.md"
    given = {"SUITE": SUITE, "BASELINE": "", "OUT": "now", "ACTION": str(ROOT), "RUNNER_TEMP": str(tmp_path)}
    if ssh_hosts.WARM:  # its istbench begins warm, as on a host of the tests
        path = f"{ssh_hosts.HOST_PYTHON}:{os.environ.get('PYTHONPATH', '')}"
        given |= {warm.ADDRESS: warm.server_address(), warm.PYTHON: "any", "PYTHONPATH": path}
    found = {}
    for condition in ("", "final < 0.0001", "final > 0.0001"):
        environment = {
            **os.environ, **given, "FAIL_IF": condition, "GITHUB_STEP_SUMMARY": str(summary),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, capture_output=True)
        found[condition] = done.returncode, done.stderr.decode()
    assert [status for status, _ in found.values()] == [0, 0, 4], found
    assert "failed by --fail-if: ddp on 1 node: final is" in found["final > 0.0001"][1]
    said = summary.read_text()
    assert "| method |" in said
    assert "- failed by --fail-if" in said
    assert (tmp_path / "now/report/page.html").is_file()
    assert json.loads(next((tmp_path / "now/runs").glob("*/run.json")).read_text())["status"] == "done"
