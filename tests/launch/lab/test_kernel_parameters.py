"""What a lab needs of the kernel: network parameters of its nodes, and the rights to make them."""

import contextlib
import os

import pytest

from istbench.base.errors import UserError
from istbench.launch.lab import namespaces, network
from istbench.launch.lab.network import ShapedNetwork
from istbench.studies.faults import small_disk


def test_no_bandwidth_exceeds_the_kernels_largest_send_queue():
    unsent = [
        int(ShapedNetwork(nodes=2, bandwidth=rate).parameters()["tcp_limit_output_bytes"]) for rate in (1e8, 1e15)
    ]
    assert unsent == [262_144, 2**31 - 1]


def test_a_parameter_that_the_kernel_refuses_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(namespaces, "inside", lambda _: contextlib.nullcontext())
    lacking = tmp_path / "no such folder" / "tcp_none"  # an absolute path is no longer below /proc/sys
    with pytest.raises(UserError, match="cannot build a lab .* setting .*tcp_none to 1 failed: No such"):
        namespaces.set_parameter("node", str(lacking), "1")


def test_root_of_a_container_is_refused_at_the_door(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t00000000a80425fb\n")  # of Docker
    monkeypatch.setattr(namespaces, "_STATUS", status)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match="^a lab needs root with CAP_NET_ADMIN and CAP_SYS_ADMIN, for network"):
        network.check()
    assert small_disk.why_not().startswith("a full disk needs root with CAP_SYS_ADMIN")
    status.write_text("CapEff:\t00000000a82435fb\n")
    assert namespaces.lacked("CAP_NET_ADMIN", "CAP_SYS_ADMIN") == []
