"""The part of a host in an all-reduce of all hosts."""

import io
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from free_port import free_port

from istbench.launch.hosts import remote_programs
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.remote_programs import BusBandwidth, all_reduce

pytestmark = pytest.mark.processes


def question(nodes, slots):
    return {
        "endpoint": ["127.0.0.1", free_port()],
        "nodes": nodes,
        "rank": 0,
        "slots": slots,
        "device": "cpu",
        "seconds": 0.05,
        "key": "ab" * 32,
        "name": "a",
    }


def test_all_processes_of_a_host_measure():
    found = msgspec.convert(all_reduce(Agent(io.StringIO(), {}), question(2, 2)), list[BusBandwidth])
    assert [(own.nodes, own.backend, own.right) for own in found] == [(2, "gloo", True)] * 2


@pytest.mark.parametrize(("slots", "threads"), [(2, "3"), (8, "1")])
def test_processes_of_a_host_share_its_cores(monkeypatch, slots, threads):
    monkeypatch.setattr(remote_programs, "cores", lambda: 7)
    monkeypatch.setattr(remote_programs, "answers_of", lambda *given: given[3])
    assert [own["OMP_NUM_THREADS"] for own in all_reduce(None, question(slots, slots))] == [threads] * slots


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets of a process")
def test_rank_0_listens_on_the_address_of_the_endpoint_only():
    agent = Agent(io.StringIO(), {"all_reduce": all_reduce})
    asked = {"id": 1, "do": "all_reduce", **question(nodes=2, slots=1)}  # rank 1 never comes
    thread = threading.Thread(target=agent.answer, args=(asked,))
    thread.start()
    try:
        places = set()
        until = time.monotonic() + 60.0
        while len(places) < 2 and time.monotonic() < until:  # the store, and gloo
            time.sleep(0.1)
            places = listens_on(agent.undo[0].__self__.pid) if agent.undo else set()
    finally:
        agent.end()
        thread.join()
    assert {address for address, _ in places} == {"127.0.0.1"}
    assert asked["endpoint"][1] in {port for _, port in places}


def listens_on(pid):
    """The address and the port of each TCP socket on which process `pid` listens."""
    with suppress(OSError):
        own = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
        texts = [Path(f"/proc/{pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
        lines = [line.split() for text in texts for line in text.splitlines()]
        return {place_of(line[1]) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own}
    return set()


def place_of(text):
    """The address and the port in a line of /proc, which has words of four bytes in the order of the machine."""
    address, port = text.split(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    kind = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(kind, b"".join(words)), int(port, 16)
