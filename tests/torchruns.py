"""Commands of istbench under torchrun, as real processes."""

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

from free_port import free_port

STARTED = []
"""The torchruns that a test started."""


@functools.cache
def _server():
    """The address of the server that forks torchruns."""
    address = Path(tempfile.mkdtemp(prefix="istbench-warm-"), "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    here = Path(__file__).parent
    server = subprocess.Popen([sys.executable, here / "warm_torchrun.py"], stdin=listening, cwd=here.parent)

    def end():
        server.kill()
        server.wait()
        address.unlink()
        address.parent.rmdir()

    atexit.register(end)
    return str(address)


class Torchrun:
    """A torchrun, as `subprocess.Popen` has a process."""

    def __init__(self, words, folder):
        self.returncode = None
        self._outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115  (read after its end)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(_server())
        content = repr((folder, words, dict(os.environ))).encode()
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
            raise subprocess.TimeoutExpired("torchrun", timeout)
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


def start(words, *options, cwd=None):
    """Start `istbench` with `words` under torchrun with `options`."""
    process = Torchrun([str(word) for word in (*options, "-m", "istbench", *words)], str(cwd or Path.cwd()))
    STARTED.append(process)
    return process


def run_on_one(words, nodes=2, timeout_s=240):
    """Run `words` on `nodes` processes of one torchrun; returns its exit status, output and errors."""
    process = start(words, "--standalone", "--nproc-per-node", nodes)
    out, error = process.communicate(timeout=timeout_s)
    return process.returncode, out, error


def start_on_two(words, tmp_path, folders=(None, None), each=((), ())):
    """Start `words` and those of `each` on two hosts, with an --out each, in these working directories."""
    endpoint = f"127.0.0.1:{free_port()}"
    return [
        start(
            [*words, *each[host], "--out", tmp_path / f"host{host}"],
            *("--nnodes", 2, "--node-rank", host, "--nproc-per-node", 1, "--rdzv-endpoint", endpoint),
            cwd=folder,
        )
        for host, folder in enumerate(folders)
    ]
