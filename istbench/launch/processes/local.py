"""Workers on this machine: processes that a fork server forks after it has imported their modules."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import IO, TYPE_CHECKING

from istbench.base.errors import RunFailed, UserError
from istbench.base.machine import oom_kills
from istbench.base.options.run import RunRequest
from istbench.base.plugin_code import no_code_from_here
from istbench.base.scratch import scratch_folder, socket_parent
from istbench.launch.processes.failures import (
    FORK_SERVER,
    PeersLost,
    WorkerLost,
    describe,
    done_path,
    fork_server_lost,
    last_lines,
    launcher_stood,
)
from istbench.launch.processes.helpers import (
    continue_stopped,
    fork_server_ended,
    fork_server_runs,
    fork_server_within,
    kill_fork_server,
)
from istbench.launch.processes.launcher import ENDING, Job
from istbench.launch.processes.place import Place, ThisMachine
from istbench.launch.processes.stuck import Watch, exit_code_of
from istbench.launch.processes.world import World
from istbench.node.registry import own_modules
from istbench.node.stopping import END

if TYPE_CHECKING:
    from torch.distributed import TCPStore

GRACE_S = 5.0  # from the signal that ends a worker until it is killed
_POLL_S = 1.0
_LOST = 255  # exit code that multiprocessing reports after the fork server ended
_IMPORTS_S = 60.0  # of the fork server, before it starts a worker
_UNTIMED_S = 300.0  # to start a worker of a job without a time-out
_STANDS_S = 2.0
_REACHES_S = 5.0
_SERVES_S = 30.0

# Modules that the fork server imports before it forks a worker, in this order. Those of the cells follow.
PRELOADED = ["istbench.launch.processes.fork_server"]
_KERNELS = "istbench.launch.processes.compiled_kernels"
_COMPILER, _ON_DEMAND = "torch._dynamo", "istbench.launch.processes.compiler_on_demand"
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
_started = threading.Event()


def preload(requests: Iterable[RunRequest] = (), modules: Sequence[str] = ()) -> None:
    """Start the fork server, if none runs. In the background it imports `modules` and those of `requests`.

    Only the first call chooses the modules. Workers end with the thread that starts the fork server.
    """
    if fork_server_runs():
        return
    from multiprocessing import forkserver, resource_tracker

    if not _started.is_set():
        multiprocessing.set_forkserver_preload([*PRELOADED, *modules, *_modules_of(tuple(requests))])
        _use_short_sockets()
    _started.set()
    # Only the launcher ends workers. So both helper processes begin with the signals to a whole process group
    # blocked, and then ignore them. The launcher hears a signal of this moment afterwards.
    # The fork server has a standard error of its own: a worker that loses its launcher before it redirects its
    # output prints no traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    terminal = os.dup(2)
    # A gradient of a large layer is new memory in every step. With pages of 4 kB, the system takes up to a third of
    # the step to make them. In workers, torch asks for pages of 2 MB, unless the user has set its switch.
    own_switch = os.environ.get(_HUGE_PAGES)
    os.environ.setdefault(_HUGE_PAGES, "1")
    try:
        os.dup2(_server_output().fileno(), 2)
        with no_code_from_here():
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # multiprocessing unblocks some
            forkserver.ensure_running()
    finally:
        if own_switch is None:
            del os.environ[_HUGE_PAGES]
        os.dup2(terminal, 2)
        os.close(terminal)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _use_short_sockets() -> None:
    """Put the sockets of multiprocessing into a folder with a short path, whatever TMPDIR is."""
    config = getattr(multiprocessing.current_process(), "_config", None)
    if config is not None and "tempdir" not in config:
        undo = ExitStack()
        config["tempdir"] = str(undo.enter_context(scratch_folder(socket_parent())))
        atexit.register(undo.close)


def _modules_of(requests: Sequence[RunRequest]) -> list[str]:
    """The modules of istbench's own methods and workloads in `requests`, then what depends on them."""
    methods = own_modules("methods", {request.method for request in requests})
    workloads = own_modules("workloads", {request.workload for request in requests})
    compiler = _COMPILER if any(request.compile for request in requests) else _ON_DEMAND
    return [*methods, *workloads, _KERNELS, compiler]


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Runs workers as processes of this machine, in `place`; by default they use its loopback interface."""

    place: Place = field(default_factory=ThisMachine)

    def start(self, job: Job) -> "LocalWorkers":
        """Start the workers of `job`; see `Launcher.start`."""
        with ExitStack() as undo:
            undo.enter_context(self.place.built())
            store = undo.enter_context(contextlib.nullcontext(serve_store(self.place)))  # keeps it alive
            key, size = secrets.token_hex(32), job.nodes
            worlds = [
                World(rank=rank, size=size, local_rank=rank, local_size=size, master=store.host, port=store.port)
                for rank in range(size)
            ]
            environments = {world.rank: world.environment(job.threads, key) for world in worlds}
            return start_workers(job, self.place, environments, undo)


def start_workers(
    job: Job, place: Place, environments: Mapping[int, Mapping[str, str]], before: ExitStack | None = None
) -> "LocalWorkers":
    """Start one worker of `job` for each rank in `environments`: all of them, or none.

    Their end also undoes `before`.

    Raises:
        RunFailed: if a worker does not start.
    """
    from istbench.launch.processes.worker import work

    preload()
    within_s = _IMPORTS_S + (_UNTIMED_S if job.timeout_s is None else job.timeout_s)
    shutil.rmtree(job.logs, ignore_errors=True)
    job.logs.mkdir(parents=True, exist_ok=True)
    with before or ExitStack() as undo:
        processes: dict[int, ForkServerProcess] = {}
        undo.callback(_end, processes)
        for rank, environment in environments.items():
            process = multiprocessing.get_context("forkserver").Process(
                target=work, args=(job, rank, place, environment)
            )
            try:
                with fork_server_within(within_s), _without_main(job):
                    process.start()
            except TimeoutError:
                raise WorkerLost(f"{FORK_SERVER} started no worker {rank} within {within_s:g} s", nodes=0) from None
            except (OSError, EOFError) as error:
                raise RunFailed(f"worker {rank} did not start: {error}{last_lines(_early())}") from None
            processes[rank] = process
        return LocalWorkers(job, processes, undo.pop_all())


@contextlib.contextmanager
def _without_main(job: Job) -> Iterator[None]:
    """Processes that start inside do not run the user's script, which may lack `if __name__ == "__main__"`.

    They run it if the target of `job`, or a function among its arguments, stands there.
    """
    main = sys.modules["__main__"]
    if any(getattr(own, "__module__", None) == main.__name__ for own in (job.target, *job.args)):
        yield
        return
    before = dict(vars(main))
    main.__spec__ = None
    vars(main).pop("__file__", None)
    try:
        yield
    finally:
        vars(main).update({name: before[name] for name in ("__spec__", "__file__") if name in before})


class LocalWorkers:
    """Worker processes of this machine, by rank. `undo` ends them and removes their place."""

    def __init__(self, job: Job, processes: dict[int, ForkServerProcess], undo: ExitStack) -> None:
        self.processes = processes
        self._logs, self._running, self._undo = job.logs, dict(processes), undo
        self._watch = Watch(job.logs, job.timeout_s)
        self._all_done: float | None = None
        self._oom_kills = oom_kills()
        self._stood_s = 0.0  # the longest time in which this process stood still

    def wait(self) -> None:
        """Return when all workers have finished; see `Workers.wait`."""
        while not self.poll(_POLL_S):
            pass

    def poll(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a worker to end. Return whether all have finished; raise as `wait` does."""
        if not self._running:
            return True
        continue_stopped()
        began = time.monotonic()
        connection.wait([process.sentinel for process in self._running.values()], timeout_s)
        self._stood_s = max(self._stood_s, time.monotonic() - began - timeout_s)
        codes = {rank: _exit_code(process) for rank, process in self._running.items()}
        ended = {rank: code for rank, code in codes.items() if code is not None}
        failed = {rank: code for rank, code in ended.items() if code or not self._is_done(rank)}
        self._running = {rank: process for rank, process in self._running.items() if rank not in ended}
        living = {rank: process.pid or 0 for rank, process in self._running.items()}
        if failed:
            raise self._cause(failed, living)
        self._watch.look(living)
        return not self._running or self._is_over()

    def _is_over(self) -> bool:
        """Whether all workers marked their job as done some time ago. `end` ends those that hang since."""
        if not all(map(self._is_done, self._running)):
            return False
        self._all_done = self._all_done or time.monotonic()
        return time.monotonic() > self._all_done + GRACE_S

    def _cause(self, failed: Mapping[int, int], living: Mapping[int, int]) -> Exception:
        oom = oom_kills() > self._oom_kills
        reported = (self.processes[rank].exitcode not in (None, _LOST) for rank in failed)
        if not all(reported) and (how := fork_server_ended()) is not None:
            return fork_server_lost(how, self._logs, min(failed), _early(), oom=oom)
        error = describe(failed, self._logs, _early(), oom=oom)
        if not isinstance(error, PeersLost):
            return error
        if stopped := self._watch.stopped(living):
            return self._watch.of_stopped(stopped)
        return launcher_stood(self._stood_s, error) if self._stood_s > _STANDS_S else error

    def _is_done(self, rank: int) -> bool:
        return done_path(self._logs, rank).exists()

    def end(self) -> None:
        """Terminate the remaining workers; kill those that ignore it. See `Workers.end`."""
        self._undo.close()
        self._running.clear()


def serve_store(place: Place, port: int = 0) -> "TCPStore":
    """Serve the store of a job, at the address of `place` only. The system chooses the port if it is 0.

    Raises:
        UserError: if this machine does not reach its own address. torch would try for minutes, deaf to signals.
    """
    from torch.distributed import TCPStore

    with place.listening():
        _reach(place.address)
        listener = socket.create_server((place.address, port), family=_family(place.address))
        # The store closes this descriptor.
        return TCPStore(
            place.address,
            listener.getsockname()[1],
            is_master=True,
            timeout=timedelta(seconds=_SERVES_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _reach(address: str) -> None:
    try:
        with socket.create_server((address, 0), family=_family(address)) as listener:
            socket.create_connection(listener.getsockname()[:2], _REACHES_S).close()
    except OSError as error:
        raise UserError(
            f"this machine does not reach its own address {address} ({error.strerror or error}), by which the "
            "workers meet; bring its network interface up (`ip link set lo up` for the loopback interface)"
        ) from None


def _end(processes: dict[int, ForkServerProcess]) -> None:
    """End the living processes, kill them after a grace period, and release all."""
    continue_stopped()
    for number in (END, signal.SIGKILL):
        for process in processes.values():
            if _exit_code(process) is None and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        until = time.monotonic() + GRACE_S
        for process in processes.values():
            process.join(max(0.0, until - time.monotonic()))
    if any(process.is_alive() for process in processes.values()):
        kill_fork_server()  # it has not reported their ends
    for process in processes.values():
        process.join()
        process.close()
    processes.clear()


def _exit_code(process: ForkServerProcess) -> int | None:
    """The exit code of a worker that has ended, also if the fork server does not report it; None if it lives."""
    return process.exitcode if process.exitcode is not None else exit_code_of(process.pid or 0)


@functools.cache
def _server_output() -> IO[bytes]:
    """The file for standard error of the fork server, and of workers without a log yet."""
    return tempfile.TemporaryFile()


def _early() -> str:
    """Output of the fork server, and of workers before they redirected theirs."""
    output = _server_output()
    output.seek(0)
    return output.read().decode(errors="replace")
