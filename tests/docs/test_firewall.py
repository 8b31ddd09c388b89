"""The firewall rules of docs/clusters.md, loaded in a network namespace: who still connects."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import ssh_hosts

DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"
PORT = 29500
UID = 65534  # of nobody
LISTEN = "import socket\nplace = socket.create_server(('', {port}))\nprint('there', flush=True)\n"
LISTEN += "while True:\n    place.accept()[0].sendall(b'hello')\n"
# All that is to be imported is before another account, which may not read it, takes over.
CONNECT = "import encodings.idna, os, socket\nos.setuid({uid})\n"
CONNECT += "print(socket.create_connection(('{host}', {port}), 2).recv(5))"


def why_not():
    if shutil.which("nft") is None:
        return "no `nft` here: install nftables"
    return ssh_hosts.why_not()


pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]


def rules(hosts, uid):
    """The table of the docs, for these addresses and user."""
    (table,) = re.findall(r"```\n(table inet istbench .*?)```", DOCS.read_text(), re.DOTALL)
    for before, after in (("10.0.0.1, 10.0.0.2", ", ".join(hosts)), ("skuid != 1000", f"skuid != {uid}")):
        assert before in table
        table = table.replace(before, after)
    return table


@pytest.fixture
def network(tmp_path):
    """Three hosts, by number: (run a command there, its address)."""
    with ssh_hosts.hosts(3, tmp_path / "hosts") as found:
        yield found


@contextmanager
def listening(found, port):
    command = ["ip", "netns", "exec", found.named(0), sys.executable, "-c", LISTEN.format(port=port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "there\n"
            yield
        finally:
            process.kill()


def connects(found, number, host, port, uid=0):
    program = CONNECT.format(uid=uid, host=host, port=port)
    command = ["ip", "netns", "exec", found.named(number), sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True).stdout == "b'hello'\n"


def test_the_rules_keep_out_other_hosts_and_other_accounts(network):
    with ExitStack() as stack:
        for port in (PORT, 41234):
            stack.enter_context(listening(network, port))
        first = "10.79.0.1"
        tries = {
            "the other host at the endpoint": (1, first, PORT),
            "the other host at another port": (1, first, 41234),
            "a stranger's host at the endpoint": (2, first, PORT),
            "a stranger's host at another port": (2, first, 41234),
            "this account here": (0, "127.0.0.1", PORT),
            "another account here": (0, "127.0.0.1", PORT, UID),
        }
        assert [name for name, words in tries.items() if not connects(network, *words)] == []
        subprocess.run(
            ["ip", "netns", "exec", network.named(0), "nft", "-f", "-"],
            input=rules([first, "10.79.0.2"], os.getuid()),
            text=True,
            check=True,
        )
        kept_out = [name for name, words in tries.items() if not connects(network, *words)]
        assert kept_out == [
            "a stranger's host at the endpoint", "a stranger's host at another port", "another account here",
        ]  # fmt: skip
