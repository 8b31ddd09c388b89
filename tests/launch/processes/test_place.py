"""The networks of workers."""

import os

from istbench.launch.processes.place import ThisMachine


def test_workers_of_one_machine_listen_on_its_loopback_interface_alone(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "eth0")
    ThisMachine().enter(0)
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] != "eth0"
