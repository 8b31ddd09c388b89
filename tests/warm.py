"""Pythons that begin as forks of a server (`warm_server`), which has imported torch."""

import atexit
import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


@functools.cache
def _server():
    """The address of the server."""
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


class Python:
    """`python -m` with these words, as `subprocess.Popen` has a process. It begins with torch imported."""

    def __init__(self, words, cwd=None, session=False, **environment):
        self.returncode = None
        self._outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115  (read after its end)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(_server())
        folder, given = str(cwd or Path.cwd()), {**os.environ, **environment}
        os.umask(mask := os.umask(0))
        content = repr((folder, [str(word) for word in words], given, session, mask)).encode()
        socket.send_fds(self._server, [content], [output.fileno() for output in self._outputs])
        self._told = self._server.makefile()
        self.pid = int(self._told.readline())

    def _wait(self, seconds):
        if self.returncode is None and select.select([self._server], [], [], seconds)[0]:
            self.returncode = int(self._told.readline())
        return self.returncode

    def poll(self):
        return self._wait(0)

    def communicate(self, timeout=None):
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("python", timeout)
        for output in self._outputs:
            output.seek(0)
        return tuple(output.read() for output in self._outputs)

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)
