"""The server of `warm`: it forks programs, which fork their ranks or fork server. So torch is imported once.

They differ from new Pythons in how they begin alone: torchrun's agent is torch's own, for example.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from itertools import dropwhile, pairwise
from pathlib import Path

gc.disable()  # until a program begins: a fifth of the imports would be a search for garbage
# ruff: noqa: E402

import matplotlib.backends.backend_agg  # of commands that draw
import matplotlib.figure  # noqa: F401
import quick_measurements  # noqa: F401  (of ranks, and of workers that they start)
import torch._dynamo
import torch.distributed.launcher.api
import torch.nn.parallel  # noqa: F401
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

import istbench.launch.cells.resolve  # as in every rank
import istbench.node.worker  # noqa: F401  (as in every fork server)
from istbench.base.jit import load_compiled
from istbench.launch.processes.launcher import ENDING
from istbench.launch.processes.orphans import adopt_orphans, die_with_parent, kill_descendants
from istbench.node.registry import load_method, load_workload, registered

DEFAULTS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


def become(words, environment, run, kept=()):
    """End this fork as a Python with these words, environment and open files, which calls `run`."""
    gc.enable()  # subprocess disables it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    for first, last in pairwise([2, *sorted(kept), 4096]):
        os.closerange(first + 1, last)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()
            if not kept:  # a helper has the exit functions of the process that it helps
                atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run_module(words, environment, rank=False):
    """Become `python -m`, `python` or `python -c` with these words."""

    def run():
        if rank:
            multiprocessing.util.spawnv_passfds = helper_ahead()
        if words[0] == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(words[1], vars(main))
        elif words[0].endswith(".py"):
            runpy.run_path(words[0], run_name="__main__")
        else:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)

    atexit._clear()
    become([words[0], *words[2:]] if words[0] == "-c" else words, environment, run)


def start_rank(_, words, environment):
    """In place of `SubprocessHandler._popen`: the process that it starts, which `preexec_fn` never leaves."""
    own = list(dropwhile(lambda word: word.startswith("-"), words[1:]))
    if own[0].endswith(".py"):
        sys.path.insert(0, str(Path(own[0]).resolve().parent))
    return subprocess.Popen(words, start_new_session=True, preexec_fn=lambda: run_module(own, environment, True))


def start_helper(_, words, kept):
    """In place of `spawnv_passfds`, by which multiprocessing starts a fork server: a fork that runs its text."""
    process = os.fork()
    if not process:
        become(["-c"], dict(os.environ), lambda: exec(words[-1], {"__name__": "__main__"}), kept)
    return process


def helper_ahead():
    """In place of `spawnv_passfds` of a rank: a fork from before its connections waits to run the fork server."""
    ours, its = socket.socketpair()
    process = os.fork()
    if not process:
        ours.close()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # as in a fork server from its beginning
        content, files, *_ = socket.recv_fds(its, 1 << 20, 32)
        if not content:
            os._exit(0)
        text, environment, kept = eval(content)
        high = [fcntl.fcntl(file, fcntl.F_DUPFD, 512) for file in files]
        for file, number in zip(high, [0, 1, 2, *kept], strict=True):
            os.dup2(file, number)
        become(["-c"], environment, lambda: exec(text, {"__name__": "__main__"}), kept)
    its.close()
    spawn = multiprocessing.util.spawnv_passfds

    def start(path, words, kept):
        if "forkserver" not in words[-1] or ours.fileno() < 0:
            return spawn(path, words, kept)
        kept = sorted(map(int, kept))
        with ours:
            socket.send_fds(ours, [repr((words[-1], dict(os.environ), kept)).encode()], [0, 1, 2, *kept])
        return process

    return start


def enter_namespaces(process):
    """Move this process, which has one thread, to the host on which `process` runs."""
    for name in ("net", "uts", "mnt"):
        there = Path(f"/proc/{process}/ns/{name}")
        if there.readlink() != Path(f"/proc/self/ns/{name}").readlink():
            with there.open() as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter {there}")


def watch(process, asked):
    """Tell who asked the end of the child `process`; end it and all that it started if that one ends first."""
    adopt_orphans()
    ended = os.pidfd_open(process)
    asked.sendall(b"%d\n" % process)
    seen, _, _ = select.select([ended, asked], [], [])
    if ended in seen:
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        kill_descendants()
        asked.sendall(b"%d\n" % status)
    kill_descendants()


def begin(asked, request, files):
    """Become the program of a request."""
    parent, folder, words, paths, environment, session, mask, on_host, kept = request
    if session:
        os.setsid()
    if on_host:
        enter_namespaces(parent)
    else:
        while os.getppid() != parent:  # which adopts it, when the process between has ended
            time.sleep(0.001)
        asked.sendall(b"%d\n" % os.getpid())
    os.umask(mask)
    os.chdir(folder)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 512) for file in files]
    for number, file in zip([0, 1, 2, *kept], high, strict=True):
        os.dup2(file, number)
    sys.path[:1] = [*paths, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if kept:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # as in a fork server from its beginning
        become(["-c"], environment, lambda: exec(words[-1], {"__name__": "__main__"}), kept)
    if words[0] != "torch.distributed.run":  # the fork server of a rank would inherit its connections to others
        multiprocessing.util.spawnv_passfds = start_helper
    run_module(words, environment)


def serve(asked):
    """Fork a program for one connection: a child of the process that asks, on a host of one that watches both."""
    content, files, *_ = socket.recv_fds(asked, 1 << 20, 32)
    request = eval(content)
    between = os.fork()
    if between:
        os.waitpid(between, 0)
    elif not os.fork():
        process = os.fork() if request[-2] else 0
        if not process:
            begin(asked, request, files)
        with contextlib.suppress(BrokenPipeError):
            watch(process, asked)
        os._exit(0)
    else:
        os._exit(0)
    for file in files:
        os.close(file)


if __name__ == "__main__":
    die_with_parent()
    subprocess_handler.SubprocessHandler._popen = start_rank
    listening = socket.socket(fileno=0)
    for method in registered("methods"):
        load_method(method.name)
    load_workload("toy")
    load_compiled()
    gc.collect()
    gc.freeze()  # collections of programs leave the modules alone
    while True:
        with listening.accept()[0] as asked:
            serve(asked)
