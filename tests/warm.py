"""Pythons that begin as forks of a server (`warm_server`), which has imported torch."""

import atexit
import ctypes
import functools
import multiprocessing.util
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from istbench.launch.processes.orphans import adopt_orphans

_cold, _cold_helper = subprocess.Popen._execute_child, multiprocessing.util.spawnv_passfds
_ADOPTS = 37  # PR_GET_CHILD_SUBREAPER
_WARM = ("istbench", "quick_recorded_script", "torch.distributed.run")
ADDRESS, PYTHON = "ISTBENCH_TESTS_WARM", "ISTBENCH_TESTS_PYTHON"
"""Variables of hosts: the address of the server, and the Python whose programs begin warm, or "any"."""


@functools.cache
def server_address():
    """The address of the server, which this starts."""
    address = Path(tempfile.mkdtemp(prefix="istbench-warm-"), "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    here = Path(__file__).parent
    server = subprocess.Popen([sys.executable, here / "warm_server.py"], stdin=listening, cwd=here.parent)

    def end():
        server.kill()
        server.wait()
        address.unlink()
        address.parent.rmdir()

    atexit.register(end)
    return str(address)


def _fork(words, paths, folder, environment, files, session=False, kept=()):
    """Have the server fork a program that becomes a child of this process; returns its number.

    files: descriptors of its standard streams, then those of `kept`, which stay under their numbers.
    """
    os.umask(mask := os.umask(0))
    environment = dict(os.environ if environment is None else environment)
    request = (os.getpid(), str(folder or Path.cwd()), words, paths, environment, session, mask, False, kept)
    ctypes.CDLL(None).prctl(_ADOPTS, ctypes.byref(adopts := ctypes.c_int()))
    adopt_orphans()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(server_address())
        socket.send_fds(server, [repr(request).encode()], files)
        process = int(server.makefile().readline())
    adopt_orphans(bool(adopts.value))
    return process


def start_helper(path, words, kept):
    """In place of `spawnv_passfds` of multiprocessing: its fork server begins warm too."""
    if "forkserver" not in words[-1]:
        return _cold_helper(path, words, kept)
    kept = sorted(map(int, kept))
    return _fork(["-c", words[-1]], [], None, None, [0, 1, 2, *kept], kept=kept)


def _program(words, cwd, modules=_WARM):
    """The words of a program that begins warm, and the paths that Python adds; None for another command.

    The first word is a module, a file, or "-c" with a text behind it.
    """
    words = [str(word) for word in words] if isinstance(words, list) else []
    paths = [] if "-P" in words[1:3] else [str(cwd or Path.cwd())]
    while words[1:2] in (["-P"], ["-u"]):
        del words[1]
    if len(words) < 2 or words[0] != sys.executable:
        return None
    if words[1].endswith(".py"):
        return words[1:], [str(Path(cwd or Path.cwd(), words[1]).resolve().parent)]
    if words[1] == "-c":
        return words[1:], paths
    return (words[2:], paths) if words[1] == "-m" and words[2] in modules else None


def execute_child(popen, words, executable, preexec, close, passed, cwd, env, startup, flags, shell, *rest):
    """In place of `Popen._execute_child`: begin Pythons warm, and other commands as ever."""
    found = _program(words, cwd, words[2:3] if isinstance(popen, Python) else _WARM)
    if found is None or passed:
        return _cold(popen, words, executable, preexec, close, passed, cwd, env, startup, flags, shell, *rest)
    pipes, session = rest[:6], rest[-2]
    streams = (pipes[0], pipes[3], pipes[5])
    files = [own if own != -1 else number for number, own in enumerate(streams)]
    popen.pid = _fork(*found, cwd, env, files, session)
    popen._child_created = True
    popen._close_pipe_fds(*pipes)
    return None


class Python(subprocess.Popen):
    """`python -m` with these words, warm. Its output goes to files: processes that it leaves keep no pipe open."""

    def __init__(self, words, cwd=None, session=False, **environment):
        self._outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115  (read after its end)
        out, error = self._outputs
        command, env = [sys.executable, "-m", *map(str, words)], {**os.environ, **environment}
        super().__init__(command, cwd=cwd, env=env, start_new_session=session, stdout=out, stderr=error)

    _execute_child = execute_child

    def communicate(self, timeout=None):
        self.wait(timeout)
        for output in self._outputs:
            output.seek(0)
        return tuple(output.read() for output in self._outputs)
