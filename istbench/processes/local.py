"""Workers on this machine: forks of a server that has imported what they need."""

import functools
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import IO, TYPE_CHECKING

from istbench.config.run import RunRequest
from istbench.errors import RunFailed
from istbench.processes.failures import PeersLost, describe, done_path, fork_server_lost, last_lines
from istbench.processes.launcher import Job
from istbench.processes.place import Place, ThisMachine
from istbench.processes.stuck import Watch
from istbench.registry import own_modules

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_GRACE_S = 5.0
_POLL_S = 1.0
_LOST = 255  # the exit code that multiprocessing gives to processes whose fork server ended
_ENDS_S = 1.0  # a process closes its pipes before it has ended

# What the fork server imports first, in this order, before it forks a worker.
PRELOADED = ["istbench.processes.fork_server", "istbench.processes.preload"]
_started = threading.Event()


def preload(requests: Iterable[RunRequest] = ()) -> None:
    """Start the fork server, which imports what workers of `requests` need; it does so in the background.

    Only the first call starts it. Workers end with the thread that makes this call.
    """
    if _started.is_set():
        return
    _started.set()
    from multiprocessing.forkserver import ensure_running

    multiprocessing.set_forkserver_preload([*PRELOADED, *_modules_of(requests)])
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


def _modules_of(requests: Iterable[RunRequest]) -> list[str]:
    """The modules of istbench's own methods and workloads in `requests`."""
    names = {(request.method, request.workload) for request in requests}
    methods = own_modules("methods", {method for method, _ in names})
    return methods + own_modules("workloads", {workload for _, workload in names})


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Runs workers as processes of this machine, in `place`; by default they talk over its loopback interface."""

    place: Place = field(default_factory=ThisMachine)

    def start(self, job: Job) -> "LocalWorkers":
        """Set the workers of `job` going; see `Launcher.start`."""
        with ExitStack() as undo:
            undo.enter_context(self.place.built())
            store = serve_store(self.place)
            undo.callback(_let_go, store)
            meeting = environment_at(store.host, store.port, secrets.token_hex(32))
            environments = {rank: {**meeting, **_environment(job, rank)} for rank in range(job.nodes)}
            workers = start_workers(job, self.place, environments)
            undo.callback(workers.end)
            return LocalWorkers(job, workers.processes, undo.pop_all())


def start_workers(job: Job, place: Place, environments: Mapping[int, Mapping[str, str]]) -> "LocalWorkers":
    """Set those workers of `job` going that have one of the `environments`, by rank; all of them, or none.

    Raises:
        RunFailed: where one cannot be started.
    """
    from istbench.processes.worker import work

    preload()
    shutil.rmtree(job.logs, ignore_errors=True)
    job.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        processes: dict[int, ForkServerProcess] = {}
        undo.callback(_end, processes)
        for rank, environment in environments.items():
            process = multiprocessing.get_context("forkserver").Process(
                target=work, args=(job, rank, place, environment)
            )
            try:
                process.start()
            except (OSError, EOFError) as error:
                raise RunFailed(f"worker {rank} cannot be started: {error}{last_lines(_early())}") from None
            processes[rank] = process
        return LocalWorkers(job, processes, undo.pop_all())


class LocalWorkers:
    """Processes of this machine, by rank, and how to take down what they run in."""

    def __init__(self, job: Job, processes: dict[int, ForkServerProcess], undo: ExitStack) -> None:
        self.processes = processes
        self._logs, self._running, self._undo = job.logs, dict(processes), undo
        self._watch = Watch(job.logs, job.timeout_s)

    def wait(self) -> None:
        """Return when all have ended well; see `Workers.wait`."""
        while not self.poll(_POLL_S):
            pass

    def poll(self, timeout_s: float) -> bool:
        """Whether all have ended well; waits for one to end, `timeout_s` at most. Raises as `wait` does."""
        if not self._running:
            return True
        connection.wait([process.sentinel for process in self._running.values()], timeout_s)
        ended = {rank: process.exitcode or 0 for rank, process in self._running.items() if not process.is_alive()}
        failed = {rank: code for rank, code in ended.items() if code or not self._is_done(rank)}
        self._running = {rank: process for rank, process in self._running.items() if rank not in ended}
        living = {rank: process.pid or 0 for rank, process in self._running.items()}
        if failed:
            raise self._cause(failed, living)
        self._watch.look(living)
        return not self._running

    def _cause(self, failed: Mapping[int, int], living: Mapping[int, int]) -> Exception:
        if _LOST in failed.values() and (how := _fork_server_ended()) is not None:
            return fork_server_lost(how, self._logs, min(failed), _early())
        error = describe(failed, self._logs, _early())
        stopped = self._watch.stopped(living)
        return self._watch.of_stopped(stopped) if stopped and isinstance(error, PeersLost) else error

    def _is_done(self, rank: int) -> bool:
        return done_path(self._logs, rank).exists()

    def end(self) -> None:
        """End those that are left, by force where they do not end when asked; see `Workers.end`."""
        self._undo.close()
        self._running.clear()


def _environment(job: Job, rank: int) -> dict[str, str]:
    """What tells a worker who it is."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.nodes),
        "LOCAL_WORLD_SIZE": str(job.nodes),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": str(job.threads),
    }


def environment_at(address: str, port: int, key: str) -> dict[str, str]:
    """What tells a worker at which store it meets the others, and the `key` of the job."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        # The store is there: rank 0 must not open another at its address.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ISTBENCH_RUN_KEY": key,
    }


def serve_store(place: Place) -> "TCPStore":
    """The store of a job, bound to the place's address alone."""
    from torch.distributed import TCPStore

    with place.listening():
        listener = socket.create_server((place.address, 0))
        port = listener.getsockname()[1]
        # The store closes the descriptor it is given.
        return TCPStore(
            place.address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def _let_go(_store: "TCPStore") -> None:
    """The store lives as long as this is still to be called."""


def _end(processes: dict[int, ForkServerProcess]) -> None:
    """End those that are alive, by force after a grace period, and let go of all."""
    for process in processes.values():
        if process.is_alive():
            process.terminate()
    until = time.monotonic() + _GRACE_S
    for process in processes.values():
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
    processes.clear()


def _fork_server_ended() -> int | None:
    """The exit code of the fork server, negative for a signal; None where it runs, or the system cannot tell."""
    from multiprocessing.forkserver import _forkserver

    process = getattr(_forkserver, "_forkserver_pid", None)
    if process is None or not hasattr(os, "waitid"):
        return None
    until = time.monotonic() + _ENDS_S
    while True:
        try:  # multiprocessing waits for it again, and then starts another
            ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            return None
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        if time.monotonic() > until:
            return None
        time.sleep(0.01)


@functools.cache
def _server_output() -> IO[bytes]:
    """Takes the standard error of the fork server, and of workers that have no log yet."""
    return tempfile.TemporaryFile()


def _early() -> str:
    """What the fork server, and workers before their output was redirected, said."""
    output = _server_output()
    output.seek(0)
    return output.read().decode(errors="replace")
