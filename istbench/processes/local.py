"""Workers on this machine: processes that a fork server forks after it has imported their modules."""

import contextlib
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
from istbench.node.stopping import END
from istbench.plugin_code import no_code_from_here
from istbench.processes.failures import PeersLost, describe, done_path, fork_server_lost, last_lines
from istbench.processes.launcher import ENDING, Job, restore_handlers
from istbench.processes.place import Place, ThisMachine
from istbench.processes.stuck import Watch
from istbench.registry import own_modules

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_GRACE_S = 5.0
_POLL_S = 1.0
_LOST = 255  # exit code that multiprocessing reports after the fork server ended
_ENDS_S = 1.0  # a process closes its pipes before it has ended

# Modules that the fork server imports before it forks a worker, in this order.
PRELOADED = ["istbench.processes.fork_server"]
_started = threading.Event()


def preload(requests: Iterable[RunRequest] = ()) -> None:
    """Start the fork server. In the background it imports the modules for workers of `requests`.

    Only the first call starts it. Workers end with the thread that makes this call.
    """
    if _started.is_set():
        return
    _started.set()
    from multiprocessing.forkserver import ensure_running

    multiprocessing.set_forkserver_preload([*PRELOADED, *_modules_of(requests)])
    # The fork server ignores signals to the whole process group: only the launcher ends workers. It has a standard
    # error of its own: a worker that loses its launcher before it redirects its output prints no traceback.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    terminal = os.dup(2)
    try:
        os.dup2(_server_output().fileno(), 2)
        with no_code_from_here():
            ensure_running()
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        restore_handlers(before)


def _modules_of(requests: Iterable[RunRequest]) -> list[str]:
    """The modules of istbench's own methods and workloads in `requests`."""
    names = {(request.method, request.workload) for request in requests}
    methods = own_modules("methods", {method for method, _ in names})
    return methods + own_modules("workloads", {workload for _, workload in names})


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Runs workers as processes of this machine, in `place`; by default they use its loopback interface."""

    place: Place = field(default_factory=ThisMachine)

    def start(self, job: Job) -> "LocalWorkers":
        """Start the workers of `job`; see `Launcher.start`."""
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
    """Start one worker of `job` for each rank in `environments`: all of them, or none.

    Raises:
        RunFailed: if a worker does not start.
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
                raise RunFailed(f"worker {rank} did not start: {error}{last_lines(_early())}") from None
            processes[rank] = process
        return LocalWorkers(job, processes, undo.pop_all())


class LocalWorkers:
    """Worker processes of this machine, by rank. `undo` ends them and removes their place."""

    def __init__(self, job: Job, processes: dict[int, ForkServerProcess], undo: ExitStack) -> None:
        self.processes = processes
        self._logs, self._running, self._undo = job.logs, dict(processes), undo
        self._watch = Watch(job.logs, job.timeout_s)

    def wait(self) -> None:
        """Return when all workers have finished; see `Workers.wait`."""
        while not self.poll(_POLL_S):
            pass

    def poll(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a worker to end. Return whether all have finished; raise as `wait` does."""
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
        """Terminate the remaining workers; kill those that ignore it. See `Workers.end`."""
        self._undo.close()
        self._running.clear()


def _environment(job: Job, rank: int) -> dict[str, str]:
    """The environment variables of one worker: its rank and its libraries' threads."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.nodes),
        "LOCAL_WORLD_SIZE": str(job.nodes),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": str(job.threads),
    }


def environment_at(address: str, port: int, key: str) -> dict[str, str]:
    """The environment variables of all workers of a job: the address of its store, and its `key`."""
    from istbench.fabric.connect import RUN_KEY

    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        # The store exists: rank 0 must not open another at its address.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        RUN_KEY: key,
    }


def serve_store(place: Place) -> "TCPStore":
    """Serve the store of a job, at the address of `place` only."""
    from torch.distributed import TCPStore

    with place.listening():
        listener = socket.create_server((place.address, 0))
        port = listener.getsockname()[1]
        # The store closes this descriptor.
        return TCPStore(
            place.address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def _let_go(_store: "TCPStore") -> None:
    """Keep the store alive until this is called."""


def _end(processes: dict[int, ForkServerProcess]) -> None:
    """End the living processes, kill them after a grace period, and release all."""
    for process in processes.values():
        if process.is_alive() and process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, END)
    until = time.monotonic() + _GRACE_S
    for process in processes.values():
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
    processes.clear()


def _fork_server_ended() -> int | None:
    """The exit code of the fork server, negative for a signal; None if it runs or is unknown."""
    from multiprocessing.forkserver import _forkserver

    process = getattr(_forkserver, "_forkserver_pid", None)
    if process is None or not hasattr(os, "waitid"):
        return None
    until = time.monotonic() + _ENDS_S
    while True:
        try:  # without reaping: multiprocessing reaps it and starts another
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
    """The file for standard error of the fork server, and of workers without a log yet."""
    return tempfile.TemporaryFile()


def _early() -> str:
    """Output of the fork server, and of workers before they redirected theirs."""
    output = _server_output()
    output.seek(0)
    return output.read().decode(errors="replace")
