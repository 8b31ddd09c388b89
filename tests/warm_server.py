"""The server of `warm`: it forks programs, which fork their ranks or fork server. So torch is imported once.

They differ from new Pythons in how they begin alone: torchrun's agent is torch's own, for example.
"""

import atexit
import contextlib
import fcntl
import gc
import multiprocessing.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from itertools import pairwise

import quick_measurements  # noqa: F401  (of ranks, and of workers that they start)
import torch._dynamo
import torch.distributed.launcher.api
import torch.nn.parallel  # noqa: F401
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

import istbench.launch.cells.resolve  # noqa: F401  (as in every rank)
from istbench.launch.processes.launcher import ENDING
from istbench.launch.processes.orphans import die_with_parent

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
    """Become `python -m` with these words."""

    def run():
        if rank:
            multiprocessing.util.spawnv_passfds = helper_ahead()
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)

    atexit._clear()
    become(words, environment, run)


def start_rank(_, words, environment):
    """In place of `SubprocessHandler._popen`: the process that it starts, which `preexec_fn` never leaves."""
    own = list(words[words.index("-m") + 1 :])
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


def serve(asked):
    """Fork a program for one connection, a child of the process that asks."""
    content, files, *_ = socket.recv_fds(asked, 1 << 20, 3)
    parent, folder, words, paths, environment, session, mask = eval(content)
    between = os.fork()
    if between:
        os.waitpid(between, 0)
    elif not os.fork():
        if session:
            os.setsid()
        while os.getppid() != parent:  # which adopts it, when the process between has ended
            time.sleep(0.001)
        asked.sendall(b"%d\n" % os.getpid())
        os.umask(mask)
        os.chdir(folder)
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.path[:1] = [*paths, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        if words[0] == "istbench":  # the fork server of a rank would inherit its connections to other ranks
            multiprocessing.util.spawnv_passfds = start_helper
        run_module(words, environment)
    else:
        os._exit(0)
    for file in files:
        os.close(file)


if __name__ == "__main__":
    die_with_parent()
    subprocess_handler.SubprocessHandler._popen = start_rank
    listening = socket.socket(fileno=0)
    gc.collect()
    gc.freeze()  # collections of programs leave the modules alone
    while True:
        with listening.accept()[0] as asked:
            serve(asked)
