"""End workers with their launcher, even a launcher that is killed while a worker hangs in C code.

The fork server is the launcher's child and the workers' parent. On Linux, the kernel kills the fork server with the
launcher and the workers with the fork server. Elsewhere, and for a worker forked too late, a thread of the worker
waits for the end of a pipe that only the launcher holds open.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


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
