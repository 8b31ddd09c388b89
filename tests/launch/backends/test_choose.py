"""One backend is chosen from the options, and a new one needs no change to any command."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from istbench.base.errors import UserError
from istbench.cli import main
from istbench.launch.backends import choose as choose_module
from istbench.launch.backends.choose import choose
from istbench.launch.backends.here import Here
from istbench.launch.backends.hosts import Hosts
from istbench.launch.hosts.names import Host
from istbench.launch.lab.network import ShapedNetwork

sys.path.append(str(Path(__file__).parent))
import pods


@pytest.fixture
def istbench(monkeypatch, capsys):
    """Runs `istbench ...` after the one line that a new backend adds to choose.py; returns stdout and stderr."""
    for command in ("run", "compare"):  # their options are those of all backends when they are imported
        module = importlib.import_module(f"istbench.cli.{command}_command")  # it comes back after the test
        monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setattr(choose_module, "BACKENDS", [*choose_module.BACKENDS, pods.Pods])

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        return said.out, said.err

    return run


@pytest.mark.processes
def test_a_new_backend_runs_cells_of_run_and_compare(istbench, tmp_path):
    volume, out = tmp_path / "volume", tmp_path / "results"
    cell = ["--workload", "toy", "--steps", "4", "--pods", volume, "--out", out]
    ran, said = istbench("run", "--method", "ddp", *cell, "--json")
    found = json.loads(ran)
    assert (found["status"], f"pod of {found['cell']} has ended" in said) == ("done", True)
    compared, said = istbench("compare", "--methods", "ist", "--nodes", "1", *cell)
    assert "[1/1] toy-ist-n1-s0" in said
    assert "ist" in compared


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
