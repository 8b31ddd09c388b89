"""Copies from device to device; processors stand in for GPUs."""

import torch

from istbench.cli.doctor_command import copies_finding
from istbench.node import gpu_copies
from istbench.node.gpu_copies import broken_copies, wrong_copy

CPU, CPU0, META = torch.device("cpu"), torch.device("cpu", 0), torch.device("meta")


def zeros(tensor, target):
    return torch.zeros_like(tensor, device=target)


def half(tensor, target):
    return torch.cat([tensor[: len(tensor) // 2], zeros(tensor[len(tensor) // 2 :], target)])


def test_a_copy_that_arrives_whole_is_fine():
    assert wrong_copy(CPU, CPU0) == ""
    assert broken_copies([CPU, CPU0]) == ""
    assert broken_copies([CPU]) == ""


def test_a_copy_of_zeros_or_of_a_half_is_wrong():
    assert wrong_copy(CPU, CPU0, zeros) == "arrives as zeros"
    assert wrong_copy(CPU, CPU0, half) == "arrives with other values"


def test_each_broken_pair_is_named_with_the_way_out(monkeypatch):
    def lost_on_the_way(source, target):
        return wrong_copy(CPU, CPU, zeros) if target == META else ""

    monkeypatch.setattr(gpu_copies, "wrong_copy", lost_on_the_way)
    found = copies_finding([CPU, CPU0, META])
    assert (found.state, found.what) == ("broken", "gpu copies")
    assert found.detail.startswith("cpu to meta arrives as zeros, cpu:0 to meta arrives as zeros; ")
    assert "NCCL_P2P_DISABLE=1" in found.detail


def test_devices_that_copy_whole_get_one_line():
    assert copies_finding([CPU, CPU0]).state == "ok"
