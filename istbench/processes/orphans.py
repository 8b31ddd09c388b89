"""No worker outlives the process that launched it, even one that is killed while the worker is stuck in C code.

The fork server stands between the two. Where the kernel can (Linux), it kills the fork server with the launching
process and the workers with the fork server. Elsewhere, and where a worker was forked too late for that, a thread
of the worker's waits for the end of a pipe that the launching process alone holds open.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def die_with_launcher() -> None:
    """Have this worker end when the process that launched it does, or no longer knows of it."""
    die_with_parent()
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    if not launcher.is_alive():
        os._exit(1)
    threading.Thread(target=_follow, args=(launcher,), name="orphan watch", daemon=True).start()


def _follow(launcher: "multiprocessing.process.BaseProcess") -> None:
    launcher.join()
    os._exit(1)
