"""Cores and memory are counted as the control groups of made-up machines allow them."""

import os
from pathlib import Path

import pytest

from istbench.base import machine
from istbench.base.machine import available_bytes, busy_seconds, cores, keep_to_share, memory_bytes, own_cores


def write(root: Path, files: dict[str, str]) -> Path:
    """A file system at `root` with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


VERSION_2 = "0::/user/job\n"
VERSION_1 = "4:memory:/user/job\n2:cpu,cpuacct:/user/job\n0::/\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": VERSION_2}, 8),
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "9900000 100000\n"}, 8),
        (
            {
                "proc/self/cgroup": VERSION_2,
                "sys/fs/cgroup/user/job/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/user/cpu.max": "300000 100000\n",
            },
            3,
        ),
        # A container whose own group is mounted as the top, under the host's path.
        ({"proc/self/cgroup": "0::/docker/ab12\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/../job\n", "sys/fs/cgroup/job/cpu.max": "200000 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": VERSION_1,
                "sys/fs/cgroup/cpu/user/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/user/job/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        (
            {
                "proc/self/cgroup": VERSION_1,
                "sys/fs/cgroup/cpu/user/cpu.cfs_quota_us": "35000\n",
                "sys/fs/cgroup/cpu/user/cpu.cfs_period_us": "10000\n",
            },
            3,
        ),
        # Another process's group says nothing of this one.
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/other/cpu.max": "100000 100000\n"}, 8),
    ],
)
def test_cores(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert cores(write(tmp_path, files)) == expected


def test_cores_it_may_not_be_scheduled_on_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {3}, raising=False)
    quota = {"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/cpu.max": "400000 100000\n"}
    assert cores(write(tmp_path, quota)) == 1


def test_shares_of_the_cores_are_equal_and_apart(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(machine, "_before", None)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(kept[-1]) if kept else {1, 3, 4, 6, 7})
    monkeypatch.setattr(machine.os, "sched_setaffinity", lambda _, share: kept.append(share), raising=False)
    assert own_cores() == 5
    keep_to_share(1, 2)
    assert kept == [[4, 6]]
    assert own_cores() == 2
    assert cores(tmp_path) == 5
    stat = "cpu1 100 0 0 0 0 0 0 0\ncpu4 1 0 0 0 0 0 0 0\n"
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(write(tmp_path, {"proc/stat": stat})) == pytest.approx(101 / ticks)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/memory.max": "1048576\n"}, 1048576),
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/memory.max": "2097152\n"}, 2097152),
        ({"proc/self/cgroup": VERSION_2, "sys/fs/cgroup/user/job/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": VERSION_1, "sys/fs/cgroup/memory/user/job/memory.limit_in_bytes": "4096\n"}, 4096),
        (
            {
                "proc/self/cgroup": VERSION_1,
                "sys/fs/cgroup/memory/user/job/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_memory(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_bytes(write(tmp_path, files)) == (physical if expected is None else expected)


def test_available_memory_is_what_the_kernel_says_within_the_limit(tmp_path):
    meminfo = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    300 kB\n"
    assert available_bytes(write(tmp_path / "free", {"proc/meminfo": meminfo})) == 300 * 1024
    for version, folder, names in (
        (VERSION_2, "", ("memory.max", "memory.current", "inactive_file")),
        (VERSION_1, "memory/", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ):
        job = f"sys/fs/cgroup/{folder}user/job"
        group = {f"{job}/{names[0]}": "4096\n", f"{job}/{names[1]}": "3000\n"}
        group |= {f"{job}/memory.stat": f"anon 2500\n{names[2]} 500\n", "proc/self/cgroup": version}
        assert available_bytes(write(tmp_path / f"limit {folder}", {"proc/meminfo": meminfo, **group})) == 1596
    assert available_bytes(write(tmp_path / "unknown", {"proc/meminfo": "MemTotal: 1000 kB\n"})) == 0


def test_this_machine() -> None:
    assert cores() >= 1
    assert memory_bytes() > 1 << 20


def test_busy_is_what_its_cores_do_for_anyone_but_not_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 100)
    stat = """\
cpu  1 1 1 1 1 1 1 1 1 1
cpu0 100 20 3 5000 6000 40 50 60 7000 8000
cpu1 100 20 3 5000 6000 40 50 60 7000 8000
cpu2 1 0 0 9 9 0 0 0 0 0
intr 1 2 3
"""
    assert busy_seconds(write(tmp_path, {"proc/stat": stat})) == pytest.approx(1.84)
    assert busy_seconds(tmp_path / "no such system") is None


def test_kills_for_lack_of_memory_are_those_that_the_kernel_counts(tmp_path):
    assert machine.oom_kills(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 3\nnuma_hit 5\n")
    assert machine.oom_kills(tmp_path) == 3
