"""The processes that multiprocessing starts beside the workers: its fork server and its resource tracker.

The fork server starts workers and reports their ends. Neither process trains, so the launcher continues one that a
signal has stopped, and kills a fork server that does not answer. multiprocessing then starts another for the next
workers.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

from istbench.base.threads import thread_beside
from istbench.launch.processes.failures import FORK_SERVER
from istbench.launch.processes.stuck import state_of

_TRACKER = "the resource tracker of Python's multiprocessing"
_LOOKS_S = 0.5
_ENDS_S = 1.0  # a process closes its pipes before it has ended
_told: set[int] = set()


def continue_stopped() -> None:
    """Continue the helper processes that a signal has stopped, and print a line for each (Linux only)."""
    for name, process in _helpers().items():
        if state_of(process) == "T":
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
            if process not in _told:
                _told.add(process)
                line = f"a signal (SIGSTOP) stopped {name} (process {process}); istbench continued it by SIGCONT\n"
                os.write(2, line.encode())  # a signal may have interrupted a print


@contextlib.contextmanager
def fork_server_within(seconds: float) -> Iterator[None]:
    """Kill the fork server if the block inside, which waits for it, takes more than `seconds`.

    Raises:
        TimeoutError: instead of the error of the block, if the fork server was killed.
    """
    over, killed = threading.Event(), threading.Event()

    def watch() -> None:
        for _ in range(max(1, round(seconds / _LOOKS_S))):  # a launcher that is stopped itself does not count
            continue_stopped()
            if over.wait(_LOOKS_S):
                return
        killed.set()
        kill_fork_server()

    with thread_beside(watch, over, "fork server"):
        try:
            yield
        except (OSError, EOFError):
            if killed.is_set():
                raise TimeoutError from None
            raise


def kill_fork_server() -> None:
    """Kill the fork server, and with it all workers; their ends are then known."""
    process = _helpers().get(FORK_SERVER)
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def fork_server_runs() -> bool:
    """Whether the fork server has started and not ended."""
    return FORK_SERVER in _helpers() and _exit_code() is None


def fork_server_ended() -> int | None:
    """The exit code of the fork server, negative for a signal; None if it runs or is unknown."""
    until = time.monotonic() + _ENDS_S
    while (code := _exit_code()) is None and time.monotonic() < until:
        time.sleep(0.01)
    return code


def _exit_code() -> int | None:
    process = _helpers().get(FORK_SERVER)
    if process is None or not hasattr(os, "waitid"):
        return None
    try:  # without reaping: multiprocessing reaps it and starts another
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return None
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _helpers() -> dict[str, int]:
    """The ids of the helper processes of this process, by name."""
    from multiprocessing.forkserver import _forkserver
    from multiprocessing.resource_tracker import _resource_tracker

    ids = {
        FORK_SERVER: getattr(_forkserver, "_forkserver_pid", None),
        _TRACKER: getattr(_resource_tracker, "_pid", None),
    }
    return {name: process for name, process in ids.items() if process is not None}
