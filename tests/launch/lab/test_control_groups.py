"""The shares of a core that a lab writes for its nodes, for both versions of control groups."""

import pytest

from istbench.launch.lab import control_groups


@pytest.mark.parametrize(
    ("share", "quota", "period"),
    [
        (0.5, 2_500, 5_000),
        (0.1, 1_000, 10_000),  # 16 nodes on 2 cores
        (1 / 256, 1_000, 256_000),  # about 200 nodes on one core
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_small_share_gets_a_longer_period(monkeypatch, tmp_path, version, share, quota, period):
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "_VERSION_1", tmp_path if version == 1 else tmp_path / "none")
    control_groups.limit("node", share)
    group = tmp_path / "node"
    if version == 1:
        written = [(group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
    else:
        written = (group / "cpu.max").read_text().split()
    assert [int(value) for value in written] == [quota, period]
