"""A server that forks torchruns, and these fork their ranks: torch is imported once, not by each of them.

An agent is torch's own. Its ranks differ from those of `python -m torch.distributed.run -m istbench` in how they
begin alone: a fork that runs the module in place of a new Python.
"""

import atexit
import contextlib
import gc
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import torch._dynamo
import torch.nn.parallel  # noqa: F401
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

import istbench.launch.cells.resolve  # noqa: F401  (as in every rank)
from istbench.launch.processes.orphans import die_with_parent

DEFAULTS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


def become(words, environment, run):
    """End this fork as a Python process with these words and this environment that calls `run`."""
    atexit._clear()
    gc.enable()  # subprocess disables it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, 4096)  # as in a process that subprocess starts
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = words, str(Path.cwd())
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
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def start_rank(_, words, environment):
    """In place of `SubprocessHandler._popen`: the process that it starts, which `preexec_fn` never leaves."""
    module, *own = words[words.index("-m") + 1 :]

    def run():
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return subprocess.Popen(
        words, start_new_session=True, preexec_fn=lambda: become([module, *own], environment, run)
    )


def agent():
    subprocess_handler.SubprocessHandler._popen = start_rank
    torchrun.main()


def serve(asked):
    """Fork a torchrun for one connection; tell its process, and how it ended."""
    content, (out, error), *_ = socket.recv_fds(asked, 1 << 20, 2)
    folder, words, environment = eval(content)
    process = os.fork()
    if not process:
        os.chdir(folder)
        os.dup2(out, 1)
        os.dup2(error, 2)
        become(["torchrun", *words], environment, agent)
    os.close(out)
    os.close(error)
    asked.sendall(b"%d\n" % process)

    def wait():
        with asked, contextlib.suppress(BrokenPipeError):
            asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    die_with_parent()
    listening = socket.socket(fileno=0)
    while True:
        serve(listening.accept()[0])
