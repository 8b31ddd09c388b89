"""Network namespaces of the lab: made, entered, and taken down when the process that made them ends."""

import contextlib
import ctypes
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from istbench.errors import UserError
from istbench.lab import control_groups

PREFIX = "istbench-lab-"

_LOCK = Path("/run/istbench-lab.lock")
_LOCK_S = 15.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <sched.h>

# Waits for the end of its standard input, which comes when the lab's process ends in whatever way.
_REAP = f"""
cat > /dev/null
for namespace in $(ip netns list | grep -o '^{PREFIX}[a-z0-9]*'); do
    ip netns pids $namespace | xargs -r kill -9
    ip netns del $namespace
done
for group in {control_groups.GROUPS}/{PREFIX}*; do
    [ -d $group ] || continue
    for attempt in 1 2 3 4 5 6 7 8 9 10; do rmdir $group && break; sleep 0.1; done
done
"""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Be the machine's only lab inside. Afterwards, or when this process dies, there is nothing left of it.

    Raises:
        UserError: where another lab is running.
    """
    with _lock() as lock:
        # A lab whose reaper was killed too has left something.
        subprocess.run(["sh", "-c", _REAP], stdin=subprocess.DEVNULL, capture_output=True)
        reaper = _start_reaper(lock)
        try:
            yield
        finally:
            assert reaper.stdin is not None
            reaper.stdin.close()
            reaper.wait()


def enter(name: str) -> None:
    """Move the calling thread to namespace `name`."""
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Have the calling thread in namespace `name` inside."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(name)
        yield
    finally:
        _set(home)
        os.close(home)


def set_parameter(name: str, parameter: str, value: str) -> None:
    """Set the kernel's network `parameter`, a path under /proc/sys, for namespace `name`."""
    with inside(name):
        Path("/proc/sys", parameter).write_text(value)


def ip(commands: list[str]) -> None:
    """Run `ip` with the words of each of `commands`; raises as `run` does."""
    for command in commands:
        run(["ip", *command.split()])


def run(command: list[str]) -> None:
    """Run `command`, which builds a part of the lab.

    Raises:
        UserError: where it fails, with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise UserError(f"this machine cannot have a lab: `{' '.join(command)}` failed: {said[0]}")


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def _lock() -> Iterator[IO[str]]:
    """One lab at a time; a lab that has just ended, however it did, holds on until it is taken down."""
    with _LOCK.open("w") as lock:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError("another lab is running on this machine; wait for it to end") from None
                time.sleep(0.1)
        yield lock


def _start_reaper(lock: IO[str]) -> "subprocess.Popen[bytes]":
    """A process that takes the lab down when this one closes its pipe or dies, and holds `lock` until it has."""
    return subprocess.Popen(
        ["sh", "-c", _REAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )
