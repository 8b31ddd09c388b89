"""End workers with their launcher, even a launcher that is killed while a worker hangs in C code.

The fork server is the launcher's child and the workers' parent. On Linux, the kernel kills the fork server with the
launcher and the workers with the fork server. Elsewhere, and for a worker forked too late, a thread of the worker
waits for the end of a pipe that only the launcher holds open.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Collection

from istbench.base.processes import descendants

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_KILLING_S = 10.0
_POLL_S = 0.02


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def die_with_launcher() -> None:
    """End this worker when its launcher ends; at once if the launcher has ended."""
    die_with_parent()
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    if not launcher.is_alive():
        os._exit(1)
    threading.Thread(target=_follow, args=(launcher,), name="orphan watch", daemon=True).start()


def _follow(launcher: "multiprocessing.process.BaseProcess") -> None:
    launcher.join()
    os._exit(1)


def adopt_orphans(adopt: bool = True) -> None:
    """Ask the kernel to make this process the parent of all its orphaned descendants, or no longer (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, int(adopt))


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process but those in `spared`, until none is left (Linux).

    Gives up after some seconds: a process of another user, or one in the kernel, does not end.
    """
    until = time.monotonic() + _KILLING_S
    while (found := [one for one in descendants() if one not in spared]) and time.monotonic() < until:
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        for process in found:
            with contextlib.suppress(OSError):
                os.waitpid(process, os.WNOHANG)
        time.sleep(_POLL_S)
