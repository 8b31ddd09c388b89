"""Frames that leave a node late: the latency of a lab whose kernel has no netem.

A node's outgoing frames pass a TAP device, `late0`, whose token bucket gives them their rate. A process takes them
from there, holds each until its latency is over, and writes it to the TAP device `in{rank}` of the switch. So TCP
sees the latency in its acknowledgements, as on a long link. Incoming frames reach the node's `eth0` at once.

    python -m istbench.launch.lab.late_frames SECONDS HUB NODE PORT NODE PORT ...
"""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from istbench.base.errors import UserError
from istbench.launch.lab import namespaces

DEVICE = "late0"
MTU = 9000
"""Bytes of a frame: a process moves larger ones faster. One of 1500 bytes costs it as much."""

_TUN = Path("/dev/net/tun")
_SET_DEVICE, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000  # TUNSETIFF, IFF_TAP and IFF_NO_PI of <linux/if_tun.h>
_FRAME = MTU + 64
_AT_ONCE = 32
_READY_S = 30.0


def check() -> None:
    """Check that this machine can delay frames.

    Raises:
        UserError: if it cannot, with a way out.
    """
    if not _TUN.exists():
        raise UserError(
            f"a lab with latency needs netem or {_TUN}, and this kernel has neither; use --latency 0, or `istbench "
            "replay`, which simulates latency"
        )


@contextlib.contextmanager
def delaying(seconds: float, hub: str, ports: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Inside, frames from `late0` of each node arrive at its device of namespace `hub` after `seconds`.

    ports: of each node, its namespace and that device. The process ends with this one, however it ends.

    Raises:
        UserError: if the process cannot start.
    """
    words = [sys.executable, "-P", "-m", __name__, repr(seconds), hub, *(name for pair in ports for name in pair)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            ready, _, _ = select.select([process.stdout], [], [], _READY_S)
            if not ready or not process.stdout.readline():
                process.kill()
                raise UserError("cannot build a lab on this machine: the process that delays frames does not start")
            yield


def _opened(namespace: str, device: str) -> int:
    """The TAP device `device` of `namespace`."""
    with namespaces.inside(namespace):
        opened = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(opened, _SET_DEVICE, struct.pack("16sH", device.encode(), _TAP | _NO_HEADER))
    return opened


def _delay(seconds: float, targets: dict[int, int], end: int) -> None:
    """Move frames from each device to its target, late, until `end` can be read."""
    waiting: deque[tuple[float, int, bytes]] = deque()  # all wait as long, so the first came first
    while True:
        wait_s = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else None
        for source in select.select([*targets, end], [], [], wait_s)[0]:
            if source == end:
                return
            with contextlib.suppress(BlockingIOError):
                for _ in range(_AT_ONCE):
                    frame = os.read(source, _FRAME)
                    waiting.append((time.perf_counter() + seconds, targets[source], frame))
        while waiting and waiting[0][0] <= time.perf_counter():
            _, target, frame = waiting.popleft()
            with contextlib.suppress(BlockingIOError):  # a full queue loses the frame, as a switch does
                os.write(target, frame)


def _main() -> None:
    seconds, hub, *names = sys.argv[1:]
    nodes, ports = names[::2], names[1::2]
    targets = {_opened(node, DEVICE): _opened(hub, port) for node, port in zip(nodes, ports, strict=True)}
    with contextlib.suppress(OSError):  # frames must not wait for a core
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print("ready", flush=True)
    _delay(float(seconds), targets, sys.stdin.fileno())


if __name__ == "__main__":
    _main()
