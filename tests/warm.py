"""Pythons that begin as forks of a server (`warm_server`), which has imported torch."""

import atexit
import ctypes
import functools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from istbench.launch.processes.orphans import adopt_orphans

_cold = subprocess.Popen._execute_child
_ADOPTS = 37  # PR_GET_CHILD_SUBREAPER
_WARM = ("istbench", "quick_recorded_script")


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


def _start(popen, words, paths, cwd, env, streams, session):
    """In place of a new Python: have the server fork one that becomes a child of this process."""
    os.umask(mask := os.umask(0))
    files = [own if own != -1 else number for number, own in enumerate(streams)]
    environment = dict(os.environ if env is None else env)
    request = (os.getpid(), str(cwd or Path.cwd()), words, paths, environment, session, mask)
    ctypes.CDLL(None).prctl(_ADOPTS, ctypes.byref(adopts := ctypes.c_int()))
    adopt_orphans()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(server_address())
        socket.send_fds(server, [repr(request).encode()], files)
        popen.pid = int(server.makefile().readline())
    adopt_orphans(bool(adopts.value))
    popen._child_created = True


def execute_child(popen, words, executable, preexec, close, passed, cwd, env, startup, flags, shell, *rest):
    """In place of `Popen._execute_child`: begin `python -m istbench` warm, and other commands as ever."""
    module = [str(word) for word in words] if isinstance(words, list) else []
    paths = [] if "-P" in module[1:3] else [str(cwd or Path.cwd())]
    while module[1:2] in (["-P"], ["-u"]):
        del module[1]
    if not isinstance(popen, Python) and (module[:2] != [sys.executable, "-m"] or module[2] not in _WARM):
        return _cold(popen, words, executable, preexec, close, passed, cwd, env, startup, flags, shell, *rest)
    pipes, session = rest[:6], rest[-2]
    sys.audit("subprocess.Popen", sys.executable, words, cwd, env)
    _start(popen, module[2:], paths, cwd, env, (pipes[0], pipes[3], pipes[5]), session)
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
