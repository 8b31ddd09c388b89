"""One backend is chosen from the options, and a new one needs no change to any command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from istbench.base.errors import UserError
from istbench.launch.backends.choose import choose
from istbench.launch.backends.here import Here
from istbench.launch.backends.hosts import Hosts
from istbench.launch.hosts.names import Host
from istbench.launch.lab.network import ShapedNetwork

# The line that a new backend adds to choose.py, then the commands as a user types them, up to the first that fails.
PROGRAM = """
import json, sys
sys.path.append({folder!r})
import pods
from istbench.launch.backends import choose
choose.KINDS.append(pods.KIND)
from istbench.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as ended:
        print({end!r}, file=sys.stdout, flush=True)
        print({end!r}, file=sys.stderr, flush=True)
        if ended.code:
            raise
"""
END = "-- the end of a command --\n"


def istbench(*commands):
    """What each of `commands` prints, and says on stderr."""
    program = PROGRAM.format(folder=str(Path(__file__).parent), end=END.strip())
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", program, words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(zip(done.stdout.split(END)[:-1], done.stderr.split(END)[:-1], strict=True))


def test_a_new_backend_runs_cells_of_run_and_compare(tmp_path):
    volume, out = tmp_path / "volume", tmp_path / "results"
    cell = ["--workload", "toy", "--steps", "4", "--pods", volume, "--out", out]
    ran, compared = istbench(
        ["run", "--method", "ddp", *cell, "--json"], ["compare", "--methods", "ist", "--nodes", "1", *cell]
    )
    found = json.loads(ran[0])
    assert (found["status"], f"pod of {found['cell']} has ended" in ran[1]) == ("done", True)
    assert "[1/1] toy-ist-n1-s0" in compared[1]
    assert "ist" in compared[0]


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
