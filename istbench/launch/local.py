"""Workers on this machine: forks of a server that has imported what they need."""

import functools
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, TYPE_CHECKING

from istbench.errors import RunFailed
from istbench.launch.failures import describe, done_path, last_lines
from istbench.launch.launcher import Job
from istbench.launch.place import Place, ThisMachine

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_GRACE_S = 5.0


@functools.cache
def preload() -> None:
    """Start importing, in the background, what workers need; once. Workers end with the thread that calls it."""
    from multiprocessing.forkserver import ensure_running

    multiprocessing.set_forkserver_preload(["istbench.launch.fork_server", "istbench.launch.preload"])
    # Started with SIGINT ignored and its own standard error, the fork server does not answer an early Ctrl-C with
    # tracebacks; nor does a worker whose launcher went away before its output was redirected.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminal = os.dup(2)
    try:
        os.dup2(_server_output().fileno(), 2)
        ensure_running()
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Runs workers as processes of this machine, in `place`; by default they talk over its loopback interface."""

    place: Place = field(default_factory=ThisMachine)

    def start(self, job: Job) -> "LocalWorkers":
        """Set the workers of `job` going; see `Launcher.start`."""
        from istbench.launch.local_worker import work

        preload()
        shutil.rmtree(job.logs, ignore_errors=True)
        job.logs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            undo.enter_context(self.place.built())
            store = _serve_store(self.place)
            processes: list[ForkServerProcess] = []
            undo.callback(_end, processes)
            for rank in range(job.nodes):
                process = multiprocessing.get_context("forkserver").Process(
                    target=work, args=(job, rank, self.place, _environment(job, rank, store))
                )
                try:
                    process.start()
                except (OSError, EOFError) as error:
                    raise RunFailed(f"worker {rank} cannot be started: {error}{last_lines(_early())}") from None
                processes.append(process)
            return LocalWorkers(job.logs, processes, store, undo.pop_all())


class LocalWorkers:
    """Processes of this machine, and the store through which they meet."""

    def __init__(self, logs: Path, processes: list[ForkServerProcess], store: "TCPStore", undo: ExitStack) -> None:
        self._logs, self._processes, self._store, self._undo = logs, processes, store, undo

    def wait(self) -> None:
        """Return when all have ended well; see `Workers.wait`."""
        running = dict(enumerate(self._processes))
        while running:
            connection.wait([process.sentinel for process in running.values()])
            ended = {rank: process.exitcode or 0 for rank, process in running.items() if not process.is_alive()}
            failed = {rank: code for rank, code in ended.items() if code or not self._is_done(rank)}
            if failed:
                raise describe(failed, self._logs, _early())
            running = {rank: process for rank, process in running.items() if rank not in ended}

    def _is_done(self, rank: int) -> bool:
        return done_path(self._logs, rank).exists()

    def end(self) -> None:
        """End those that are left, by force where they do not end when asked; see `Workers.end`."""
        self._undo.close()


def _environment(job: Job, rank: int, store: "TCPStore") -> dict[str, str]:
    """What tells a worker who it is and where it meets the others."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.nodes),
        "LOCAL_WORLD_SIZE": str(job.nodes),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "OMP_NUM_THREADS": str(job.threads),
        # The store is there: rank 0 must not open another at its address.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _serve_store(place: Place) -> "TCPStore":
    """The store of a job, bound to the place's address alone."""
    from torch.distributed import TCPStore

    with place.listening():
        listener = socket.create_server((place.address, 0))
        port = listener.getsockname()[1]
        # The store closes the descriptor it is given.
        return TCPStore(
            place.address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def _end(processes: list[ForkServerProcess]) -> None:
    """End those that are alive, by force after a grace period, and let go of all."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    until = time.monotonic() + _GRACE_S
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
    processes.clear()


@functools.cache
def _server_output() -> IO[bytes]:
    """Takes the standard error of the fork server, and of workers that have no log yet."""
    return tempfile.TemporaryFile()


def _early() -> str:
    """What the fork server, and workers before their output was redirected, said."""
    output = _server_output()
    output.seek(0)
    return output.read().decode(errors="replace")
