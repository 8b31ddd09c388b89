"""Network namespaces of the lab. They are removed when the process that created them ends."""

import contextlib
import ctypes
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from istbench.base.errors import UserError
from istbench.launch.lab import control_groups

PREFIX = "istbench-lab-"

_LOCK = Path("/run/istbench-lab.lock")
_LOCK_S = 15.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <sched.h>
_STATUS = Path("/proc/self/status")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # their bits in <linux/capability.h>

# Waits for the end of its standard input: the lab's process closes it, however that process ends.
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


def lacked(*capabilities: str) -> list[str]:
    """Those of `capabilities` that this process lacks (Linux), as root of a container often does."""
    held = re.search(r"CapEff:\s*([0-9a-f]+)", _STATUS.read_text() if _STATUS.exists() else "")
    return [name for name in capabilities if held is None or not int(held[1], 16) >> _CAPABILITIES[name] & 1]


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Inside, no other lab runs on this machine. On exit, or when this process dies, the lab is removed.

    Raises:
        UserError: if another lab is running.
    """
    with _lock() as lock:
        # A lab leaves namespaces if its reaper was killed too.
        subprocess.run(["sh", "-c", _REAP], stdin=subprocess.DEVNULL, capture_output=True)
        # This one removes the lab when this process closes its pipe or dies, and holds the lock until then.
        with subprocess.Popen(
            ["sh", "-c", _REAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        ):
            yield


def enter(name: str) -> None:
    """Move the calling thread to namespace `name`."""
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Inside, the calling thread is in namespace `name`."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(name)
        yield
    finally:
        _set(home)
        os.close(home)


def set_parameter(name: str, parameter: str, value: str) -> None:
    """Set the kernel's network `parameter`, a path under /proc/sys, for namespace `name`.

    Raises:
        UserError: if the kernel has no such parameter, or refuses the value.
    """
    with inside(name):
        try:
            Path("/proc/sys", parameter).write_text(value)
        except OSError as error:
            raise UserError(
                f"cannot build a lab on this machine: setting {parameter} to {value} failed: {error.strerror}"
            ) from None


def ip(commands: list[str]) -> None:
    """Run `ip` with each of `commands` as arguments; raises as `run` does."""
    for command in commands:
        run(["ip", *command.split()])


def run(command: list[str], what: str = "build a lab") -> None:
    """Run `command`, a part of `what`.

    Raises:
        UserError: if it fails; with the first line of its error.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise UserError(f"cannot {what} on this machine: `{' '.join(command)}` failed: {said[0]}")


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def _lock() -> Iterator[IO[str]]:
    """Hold the lock of the machine's only lab. A lab that has ended keeps it until its namespaces are removed."""
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
