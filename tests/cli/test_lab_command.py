"""`istbench lab` as a user types it: real processes in real namespaces."""

import json
import math

import pytest
from small_task import write_task

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.launch.lab import network


@pytest.fixture
def able():
    """A machine that can make a lab."""
    try:
        network.check()
    except UserError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def namespaces(able, only_lab, monkeypatch):
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # as the command sets it, which lasts as long as its process


@pytest.mark.processes
def test_a_run_on_shaped_links_says_so(namespaces, tmp_path, istbench):
    task = write_task(tmp_path / "mine.py")
    run = ["run", "--method", "ist", "--workload", task, "--steps", "30", "--out", tmp_path, "--json"]
    status, out, said = istbench("lab", "--nodes", 2, "--bandwidth", "200mbit", "--latency", "5ms", "--", *run)
    assert status == 0, said
    result = json.loads(out)
    assert result["nodes"] == 2
    header = json.loads((tmp_path / "runs" / result["cell"] / "run.json").read_text())
    assert header["host"]["lab"].startswith("links shaped to 200 Mbit/s, 5 ms one way by")
    assert header["config"]["lab"]["bandwidth"] == 200e6
    # The same run outside is another cell, with the same weights: a network changes no training.
    outside = json.loads(istbench(*run, "--nodes", "2")[1])
    assert outside["cell"] != result["cell"]
    assert outside["weights_sha256"] == result["weights_sha256"]


QUICK = ["--workload", "toy", "--seconds", "0.5"]


@pytest.mark.processes
def test_replays_are_measured_against_shaped_links(namespaces, tmp_path, istbench):
    asked = ["--methods", "ddp,ist", "--nodes", "2", "--bandwidth", "20mbit,50mbit"]
    status, out, said = istbench("lab", "validate", *asked, *QUICK, "--out", tmp_path, "--json")
    assert status == 0, said
    assert "4 runs of at least 0.5 s each, about " in said
    assert "2 of 4: toy by ddp, 2 nodes, 50mbit: measured " in said
    errors = json.loads(out)
    assert [(e["method"], e["bandwidth"]) for e in errors] == [
        ("ddp", "20mbit"), ("ddp", "50mbit"), ("ist", "20mbit"), ("ist", "50mbit"),
    ]  # fmt: skip
    for error in errors:
        assert error["measured_s"] > 0.25
        assert error["steps"] > 0
        assert math.isclose(error["error"], error["replayed_s"] / error["measured_s"] - 1)
    written = {path.name for path in (tmp_path / "validation").iterdir()}
    assert written == {"toy-n2.json", "toy-n2.md", "toy-n2.png", "toy-n2.svg", "summary.md"}


@pytest.mark.processes
def test_slower_nodes_and_more_threads_are_replayed_from_one_recording(namespaces, tmp_path, istbench):
    asked = ["--methods", "local_sgd", "--bandwidth", "50mbit", "--scaling"]
    status, out, said = istbench("lab", "validate", *asked, *QUICK, "--out", tmp_path, "--json")
    assert status == 0, said
    half, *threads = json.loads(out)
    assert (half["environment"], half["nodes"]) == ("0.5 of a core", 2)
    assert 1 < half["scale"] < 4
    assert [(error["nodes"], error["environment"]) for error in threads] == (
        [(1, f"{cores()} threads")] if cores() > 1 else []
    )
    assert (tmp_path / "validation" / "toy-n2-scaling.md").exists()
    assert not (tmp_path / "validation" / "summary.md").exists()


FAILS = """
import os

from istbench.methods.local_sgd import LocalSGD

class Fails(LocalSGD):
    name = "fails"

    def step(self, batch):
        if os.environ["GLOO_SOCKET_IFNAME"] == "eth0":  # in the lab, not in the rehearsal
            raise ValueError("out of luck")
        return super().step(batch)
"""


@pytest.mark.processes
def test_what_was_measured_before_a_run_fails_is_not_lost_nor_what_stood_there(namespaces, tmp_path, istbench):
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "toy-n2.json").write_text("[]")
    (tmp_path / "fails.py").write_text(FAILS)
    asked = ["--methods", "ddp,fails", "--bandwidth", "50mbit", "--out", tmp_path]
    status, out, said = istbench("lab", "validate", *asked, *QUICK, "--plugin", tmp_path / "fails.py")
    assert status == 1
    assert "out of luck" in said
    assert "2 nodes, unfinished" in out
    (measured,) = json.loads((tmp_path / "validation" / "toy-n2-unfinished.json").read_text())
    assert measured["method"] == "ddp"
    assert (tmp_path / "validation" / "toy-n2.json").read_text() == "[]"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--nodes", "4", "--latency", "5ms", "--bandwidth", "100mbit"], "--nodes, --bandwidth, --latency"),
        (["--nodes", "2"], "--nodes"),
        (["--racks", "2", "--uplink", "1gbit"], "--racks, --uplink"),
        (["--host-nodes", "2"], "--host-nodes"),
    ],
)
def test_links_named_before_validate_are_not_passed_over(istbench, given, named):
    status, _, said = istbench("lab", *given, "validate", "--workload", "none such")
    assert (status, said) == (2, f"istbench: validate makes its own labs: give {named} after it\n")


@pytest.mark.parametrize("network", ["--racks", "--host-nodes"])
def test_racks_and_hosts_are_no_part_of_scaling(istbench, network):
    given = [network, "2", "--methods", "ddp", "--workload", "toy"]
    status, _, said = istbench("lab", "validate", "--scaling", *given)
    assert status == 2
    assert "--scaling checks computing, --host-nodes, --racks and --uplink the network" in said


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bandwidth", "1gbyte", "--", "run"], "'1gbyte' is not a bandwidth"),
        (["--latency", "5", "--", "run"], "'5' has no unit"),
        (["--nodes", "1", "--", "run"], "1 is not in the range 2<=x<=250"),
        (["--nodes", "3", "--", "run", "--method", "ist", "--workload", "toy", "--nodes", "2"], "lab has 3 nodes"),
        (["validate", "--bandwidth", "fast"], "'fast' is not a bandwidth"),
        (["validate", "--methods", "its"], "did you mean 'ist'"),
        (["validate", "--nodes", "2,1"], "--nodes"),
        (["validate", "--methods", "dslide", "--workload", "toy"], "toy"),
        (["validate", "--workload", "toy", "--workload-set", "none=1"], "toy have no such option"),
    ],
)
@pytest.mark.usefixtures("able")
def test_wrong_use_is_one_line(istbench, arguments, message):
    status, _, said = istbench("lab", *arguments)
    assert status == 2
    assert message in said
    assert "Traceback" not in said
