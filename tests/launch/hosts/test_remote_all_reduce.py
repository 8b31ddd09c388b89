"""The part of a host in an all-reduce of all hosts."""

import io
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import ssh_hosts
from agent_here import AgentHere
from free_port import free_port

from istbench.launch.hosts import remote_actions
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.group import HostGroup
from istbench.launch.hosts.links import measure_bus
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.remote_programs import program
from istbench.launch.processes.world import World

pytestmark = pytest.mark.processes


class OwnHost(AgentHere):
    """This machine as a host of so many `slots`."""

    def __init__(self, slots):
        super().__init__("a")
        self.host = Host("a", slots)


def test_all_processes_of_a_host_measure():
    group = HostGroup(facts={"a": ssh_hosts.GOOD}, clocks={}, addresses={"a": "127.0.0.1"}, port=free_port())
    found = measure_bus([OwnHost(2)], group, {}, 0.05)
    assert (found.nodes, found.backend, found.right) == (2, "gloo", True)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets of a process")
def test_rank_0_listens_on_the_address_of_the_endpoint_only():
    agent, port = Agent(io.StringIO(), {}), free_port()
    world = World(rank=0, size=2, local_rank=0, local_size=1, master="127.0.0.1", port=port)  # rank 1 never comes
    words = program("all_reduce", "cpu", "0.05", environments=[world.environment(1, "ab" * 32)])
    asked = {"id": 1, "do": "run_programs", "of": remote_actions.__name__, **words}
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
    assert port in {port for _, port in places}


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
