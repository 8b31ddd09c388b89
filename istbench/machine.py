"""What this process may use of its machine, within the limits of its control groups, and how busy that is."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

HOST = "ISTBENCH_HOST"  # in the environment: this machine's name, as the host that asked for a run calls it
_ROOT = Path("/")

# Cores that this process could be scheduled on before `keep_to_share`.
_before: set[int] | None = None


def host_name() -> str:
    """This machine's name, as the user knows it."""
    return os.environ.get(HOST) or socket.gethostname()


def keep_to_share(number: int, shares: int) -> None:
    """Keep this process, which has one thread, to share `number` of `shares` equal ones of its cores.

    Cores that are left over are nobody's. `cores` and `busy_seconds` go on telling of all.
    """
    global _before
    own = sorted(os.sched_getaffinity(0))
    size = len(own) // shares
    os.sched_setaffinity(0, own[number * size : (number + 1) * size])
    _before = set(own)


def own_cores() -> int:
    """Cores of this process's share, or all, where it has not been kept to one."""
    return cores() if _before is None else len(os.sched_getaffinity(0))


def cores(root: Path = _ROOT) -> int:
    """Cores that this process may keep busy, at least 1: those it is scheduled on, or its CPU quota if lower.

    `root` holds the `proc` and `sys` that say what the control groups allow.
    """
    schedulable = len(_schedulable()) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([schedulable, *map(int, _cpu_quotas(root))]))


def busy_seconds(root: Path = _ROOT) -> float | None:
    """CPU seconds that this process's cores have worked since the machine started, for whatever process.

    What a virtual machine's host took away counts, what the kernel did for its devices and networks does not. None
    where the system does not tell.
    """
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return None
    own = {f"cpu{number}" for number in _schedulable()}
    ticks = [line.split()[1:9] for line in lines if line.split(maxsplit=1)[0] in own]
    # user, nice, system, (idle, iowait, irq, softirq,) steal
    return sum(int(value) for core in ticks for value in core[:3] + core[7:]) / os.sysconf("SC_CLK_TCK")


def memory_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory that this process may have: what the machine has, or its control groups' limit if lower.

    `root` is as for `cores`.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_memory_limits(root)])


def _schedulable() -> set[int]:
    return os.sched_getaffinity(0) if _before is None else _before


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPU seconds a second, of every control group that limits them."""
    for group in _groups(root, ""):
        match _words(group / "cpu.max"):
            case [quota, period] if quota != "max":
                yield int(quota) / int(period)
    for group in _groups(root, "cpu"):
        match _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us"):
            case [quota], [period] if int(quota) > 0:
                yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    """Bytes, of every control group that limits them."""
    for group in _groups(root, ""):
        match _words(group / "memory.max"):
            case [limit] if limit != "max":
                yield int(limit)
    for group in _groups(root, "memory"):
        match _words(group / "memory.limit_in_bytes"):
            case [limit]:
                yield int(limit)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's control group and all above it; of version 2 where `controller` is "".

    A container often sees its own group mounted as the top, under a path that is the host's: directories of such
    a path are not there, and the top is.
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
