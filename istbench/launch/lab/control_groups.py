"""Control groups that limit a process to a share of a core."""

import math
import os
from pathlib import Path

from istbench.base.errors import UserError
from istbench.base.machine import cores

_VERSION_1 = Path("/sys/fs/cgroup/cpu")
_VERSION_2 = Path("/sys/fs/cgroup")
# A node that has used up its share waits for the next period. Kernels of 250 ticks a second miss shorter ones.
_LEAST_PERIOD_US = 5_000
_LEAST_QUOTA_US = 1_000  # of the kernel; a smaller share needs a longer period
# Against other processes of this machine: with equal weights they made replays of a lab up to 40 % too short.
_TIMES_USUAL_WEIGHT = 50

GROUPS = _VERSION_1 if _VERSION_1.is_dir() else _VERSION_2


def check() -> None:
    """Check that `limit` works on this machine.

    Raises:
        UserError: if the kernel has no cpu control group, or this process may not create one.
    """
    name = f"istbench-probe-{os.getpid()}"  # not of a lab: one that starts removes what an earlier one left
    try:
        limit(name, 0.5)
        (GROUPS / name).rmdir()
    except OSError as error:
        raise UserError(
            "more nodes than cores need the cpu control group, which gives every node the same share; it is "
            f"not available here ({error.strerror}); use at most {cores()} nodes"
        ) from None


def limit(name: str, share: float) -> None:
    """Create a control group whose processes together get `share` of one core, before other processes.

    Raises:
        OSError: if the kernel refuses.
    """
    group = GROUPS / name
    period = max(_LEAST_PERIOD_US, math.ceil(_LEAST_QUOTA_US / share))
    quota = round(share * period)
    if GROUPS == _VERSION_1:
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(str(_TIMES_USUAL_WEIGHT * 1024))
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (GROUPS / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir(exist_ok=True)
        (group / "cpu.weight").write_text(str(_TIMES_USUAL_WEIGHT * 100))
        (group / "cpu.max").write_text(f"{quota} {period}")


def join(name: str) -> None:
    """Put the calling process into the control group."""
    (GROUPS / name / "cgroup.procs").write_text(str(os.getpid()))
