"""The names of cells: what stands in them, and what does not."""

from pathlib import Path

import msgspec
import pytest

from istbench.base.options.run import Lab, LabHosts, RunRequest, Uplink
from istbench.base.options.suite import read_suite
from istbench.launch.cells import resolve
from istbench.launch.cells.resolve import prepare_cell

ROOT = Path(__file__).parents[3]


def prepared(request):
    return prepare_cell(request, lambda *_: None)


def test_a_lab_with_hosts_and_racks_survives_json():
    hosts, uplink = LabHosts(nodes=2, bandwidth=1e10), Uplink(nodes=4, bandwidth=1e8)
    lab = Lab(summary="links shaped to 1 Gbit/s", bandwidth=1e9, hosts=hosts, uplink=uplink)
    assert msgspec.json.decode(msgspec.json.encode(lab), type=Lab) == lab


@pytest.mark.parametrize("nodes", [1, 2])
def test_machines_with_other_cores_give_a_cell_the_same_name(nodes, monkeypatch):
    request = RunRequest(workload="toy", method="ist", nodes=nodes, steps=4, device="cpu")
    monkeypatch.setattr(resolve, "cores", lambda: 1)
    one = prepared(request)
    monkeypatch.setattr(resolve, "cores", lambda: 2)
    two = prepared(request)
    assert (one.cell, one.config) == (two.cell, two.config)
    assert (one.threads, two.threads) == (1, 2 // nodes)


def test_threads_that_the_user_gave_stand_in_the_name():
    request = RunRequest(workload="toy", method="ist", nodes=2, steps=4, device="cpu")
    given = prepared(msgspec.structs.replace(request, threads=1))
    assert (given.config.threads, given.threads) == (1, 1)
    assert given.cell != prepared(request).cell


@pytest.mark.processes
def test_cells_of_the_smoke_suite_differ():
    suites = read_suite(ROOT / "configs" / "smoke.toml")
    names = [prepared(request).config.cell("data") for suite in suites for request in suite.requests()]
    assert len(set(names)) == len(names)
