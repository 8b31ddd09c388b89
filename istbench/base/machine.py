"""Cores and memory of this process within the limits of its control groups, and how busy the cores are."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

# Environment variables: this machine's name on the host that requested the run; the key of a job, in hexadecimal.
HOST, RUN_KEY = "ISTBENCH_HOST", "ISTBENCH_RUN_KEY"
_ROOT = Path("/")
_LEAST_BUSY_S = 0.5  # the least time to measure how busy a machine is: its clock ticks a hundred times a second

# Cores that this process could be scheduled on before `keep_to_share`.
_before: set[int] | None = None


def host_name() -> str:
    """This machine's name for users."""
    return os.environ.get(HOST) or socket.gethostname()


def keep_to_share(number: int, shares: int) -> None:
    """Restrict this process, which has one thread, to share `number` of `shares` equal shares of its cores.

    No share has the remaining cores. `cores` and `busy_seconds` still count all cores.
    """
    global _before
    own = sorted(os.sched_getaffinity(0))
    size = len(own) // shares
    os.sched_setaffinity(0, own[number * size : (number + 1) * size])
    _before = set(own)


def own_cores() -> int:
    """Number of cores in this process's share, or of all its cores without `keep_to_share`."""
    return cores() if _before is None else len(os.sched_getaffinity(0))


def cores(root: Path = _ROOT) -> int:
    """Number of cores for this process, at least 1: the cores it is scheduled on, or its CPU quota if lower.

    `root` has the `proc` and `sys` with the limits of control groups.
    """
    schedulable = len(_schedulable()) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([schedulable, *map(int, _cpu_quotas(root))]))


def cores_of_others(before: float | None, after: float | None, own_s: float, seconds: float) -> float | None:
    """Mean number of cores that other programs used in `seconds`; None if unknown, or after too short a time.

    Args:
        before, after: `busy_seconds` at the start and at the end. own_s: CPU seconds of the program itself.
    """
    if before is None or after is None or seconds < _LEAST_BUSY_S:
        return None
    return max(0.0, after - before - own_s) / seconds


def busy_seconds(root: Path = _ROOT) -> float | None:
    """CPU seconds of all processes on this process's cores since the machine started.

    They include time taken by a virtual machine's host, but not the kernel's interrupts for devices and networks.
    None if the system has no such count.
    """
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return None
    own = {f"cpu{number}" for number in _schedulable()}
    ticks = [line.split()[1:9] for line in lines if line.split(maxsplit=1)[0] in own]
    # user, nice, system, (idle, iowait, irq, softirq,) steal
    return sum(int(value) for core in ticks for value in core[:3] + core[7:]) / os.sysconf("SC_CLK_TCK")


def oom_kills(root: Path = _ROOT) -> int:
    """The number of processes that the kernel has killed for lack of memory; 0 if unknown.

    `root` has `proc`.
    """
    try:
        words = (root / "proc/vmstat").read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0


def memory_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory for this process: the machine's memory, or the limit of its control groups if lower.

    `root` is as for `cores`.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _memory_limits(root))])


def available_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory that this process could get now, within the limits of its control groups; 0 if unknown.

    `root` is as for `cores`.
    """
    words = _words(root / "proc/meminfo")
    if "MemAvailable:" not in words:
        return 0
    available = 1024 * int(words[words.index("MemAvailable:") + 1])
    return max(0, min([available, *(limit - used for limit, used in _memory_limits(root))]))


def _schedulable() -> set[int]:
    return os.sched_getaffinity(0) if _before is None else _before


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPU seconds per second, for every control group with a limit."""
    for group in _groups(root, ""):
        match _words(group / "cpu.max"):
            case [quota, period] if quota != "max":
                yield int(quota) / int(period)
    for group in _groups(root, "cpu"):
        match _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us"):
            case [quota], [period] if int(quota) > 0:
                yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Bytes of the limit and bytes in use, for every control group with a limit. Idle cached files do not count."""
    for controller, limited, used, idle in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _groups(root, controller):
            stat = _words(group / "memory.stat")
            cached = int(stat[stat.index(idle) + 1]) if idle in stat else 0
            match _words(group / limited):
                case [limit] if limit != "max":
                    yield int(limit), sum(map(int, _words(group / used))) - cached


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's control group and all groups above; version 2 if `controller` is "".

    In a container, the top directory is often the container's own group, and the paths are the host's. Then only
    the top directory exists.
    """
    top = root / "sys/fs/cgroup" / controller
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
