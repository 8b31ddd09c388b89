"""The kernel's network parameters of a lab's nodes."""

import contextlib

import pytest

from istbench.base.errors import UserError
from istbench.launch.lab import namespaces
from istbench.launch.lab.network import ShapedNetwork


def test_no_bandwidth_exceeds_the_kernels_largest_send_queue():
    unsent = [
        int(ShapedNetwork(nodes=2, bandwidth=rate)._parameters()["tcp_limit_output_bytes"]) for rate in (1e8, 1e15)
    ]
    assert unsent == [262_144, 2**31 - 1]


def test_a_parameter_that_the_kernel_refuses_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(namespaces, "inside", lambda _: contextlib.nullcontext())
    lacking = tmp_path / "no such folder" / "tcp_none"  # an absolute path is no longer below /proc/sys
    with pytest.raises(UserError, match="cannot build a lab .* setting .*tcp_none to 1 failed: No such"):
        namespaces.set_parameter("node", str(lacking), "1")
