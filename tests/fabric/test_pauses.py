"""Pauses of a process, which its heartbeats notice. Functions named `node_*` run on every node."""

import os
import signal
import time

import pytest

from istbench.launch.processes.on_nodes import on_nodes

pytestmark = pytest.mark.processes

STOPPED_S = 2.2


def node_pauses(fabric):
    """The seconds for which this rank paused, if rank 0 stops rank 1 while that one waits for it."""
    since = time.perf_counter()
    process = int(fabric.numbers(os.getpid())[1])
    if fabric.rank == 0:
        os.kill(process, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(process, signal.SIGCONT)
    fabric.barrier()
    until = time.monotonic() + 30.0
    while fabric.rank == 1 and not fabric.texts.heartbeats.paused_s(since, until) and time.monotonic() < until:
        time.sleep(0.01)
    return fabric.texts.heartbeats.paused_s(since, time.perf_counter())


def test_a_stopped_process_knows_of_its_pause_also_while_it_waits_for_others():
    stopping, stopped = on_nodes(node_pauses, 2)
    assert stopped > 1.0  # all but the rest of a second until the next heartbeat
    assert stopped > stopping
