"""One backend is chosen from the options, and a new one needs no change to any command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from istbench.backends.choose import choose
from istbench.backends.here import Here
from istbench.backends.hosts import Hosts
from istbench.errors import UserError
from istbench.hosts.names import Host
from istbench.lab.network import ShapedNetwork

# The line that a new backend adds to choose.py, then the command as a user types it.
PROGRAM = """
import sys
sys.path.append({folder!r})
import pods
from istbench.backends import choose
choose.KINDS.append(pods.KIND)
from istbench.cli import main
main(sys.argv[1:])
"""


def istbench(*words):
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    return subprocess.run([sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True)


def test_a_new_backend_runs_cells_of_run_and_compare(tmp_path):
    volume, out = tmp_path / "volume", tmp_path / "results"
    cell = ["--workload", "toy", "--steps", "4", "--pods", volume, "--out", out]
    ran = istbench("run", "--method", "ddp", *cell, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["status"], f"pod of {found['cell']} has ended" in ran.stderr) == ("done", True)
    compared = istbench("compare", "--methods", "ist", "--nodes", "1", *cell)
    assert compared.returncode == 0, compared.stderr
    assert "[1/1] toy-ist-n1-s0" in compared.stderr
    assert "ist" in compared.stdout


def test_without_an_option_cells_run_here():
    assert choose({}) == Here()


def test_an_option_chooses_and_the_enclosing_lab_does():
    lab = Here(lab=ShapedNetwork(nodes=2, bandwidth=1e9))
    assert choose({}, lab) is lab
    chosen = choose({"hosts": "a,b"})
    assert chosen == Hosts(hosts=(Host("a"), Host("b")))
    assert chosen.nodes == 2


def test_two_backends_at_once_are_refused():
    lab = Here(lab=ShapedNetwork(nodes=2, bandwidth=1e9))
    with pytest.raises(UserError, match="^a lab and --hosts both start nodes: leave one of them out$"):
        choose({"hosts": "a"}, lab)
    with pytest.raises(UserError, match="^--hosts and --slurm both start nodes"):
        choose({"hosts": "a", "slurm": ("cpus=1",)})
