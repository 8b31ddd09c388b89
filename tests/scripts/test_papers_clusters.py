"""The files of scripts/aws are what `istbench engine` writes."""

from pathlib import Path

import pytest

from istbench.cli import main

FOLDER = Path(__file__).parents[2] / "scripts" / "aws"
WHEEL = Path("dist/istbench-0.1.0-py3-none-any.whl")
WORKLOADS = {"m5.2xlarge": "speech", "p3.2xlarge": "cifar10"}


@pytest.mark.parametrize("machine", WORKLOADS)
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_the_files_of_the_papers_clusters_are_what_the_command_writes(
    nodes, machine, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    WHEEL.parent.mkdir()
    WHEEL.touch()
    words = f"--workload {WORKLOADS[machine]} --methods ist,local_sgd,ddp --nodes {nodes} --seeds 3".split()
    with pytest.raises(SystemExit, match="0"):
        main(
            ["engine", "skypilot", f"--nodes={nodes}", f"--machine={machine}", "--hours=6", "--", "compare", *words]
        )
    assert (FOLDER / f"{nodes}x{machine}.yaml").read_text() == capsys.readouterr().out
