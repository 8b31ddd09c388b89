"""Findings of `doctor` about this machine."""

import os
from pathlib import Path

import torch

from istbench.base.errors import UserError
from istbench.cli import doctor_command
from istbench.cli.doctor_command import Finding
from istbench.node.machine_speed import product_speeds


def test_products_by_onednn_that_are_much_faster_are_a_finding():
    (finding,) = doctor_command.products_findings(104.0, 236.0, "MKL")
    assert finding.state == "ok"
    assert "by MKL at 104 GFLOP/s, oneDNN reaches 236" in finding.detail
    assert list(doctor_command.products_findings(104.0, 120.0, "MKL")) == []
    assert list(doctor_command.products_findings(236.0, 104.0, "MKL")) == []


def test_both_libraries_compute_the_measured_product():
    speeds = product_speeds()
    if not torch.backends.mkldnn.is_available():
        assert speeds is None
        return
    assert min(speeds) > 0.1


def test_a_loopback_interface_that_is_down_is_a_finding(monkeypatch):
    def refused(*_):
        raise UserError("this machine does not reach itself at 127.0.0.1")

    monkeypatch.setattr("istbench.launch.processes.on_nodes.on_nodes", refused)
    (finding,) = doctor_command._processes()
    assert (finding.state, finding.detail) == ("broken", "this machine does not reach itself at 127.0.0.1")


def test_a_cache_in_a_directory_of_another_user_is_broken(tmp_path, monkeypatch):
    closed, exists = tmp_path / "closed", Path.exists
    closed.mkdir()

    def refused(path, **given):
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **given)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", refused)
        patched.setattr(os, "access", lambda path, mode: path != closed)
        patched.setenv("ISTBENCH_CACHE", str(closed / "x" / "y"))
        (finding,) = doctor_command._cache()
    way_out = "set ISTBENCH_CACHE to a directory that is"
    assert finding == Finding("broken", "cache", f"{closed}/x/y cannot be written; {way_out}")
