"""Counted bytes against the counters of a network interface. Functions named `node_*` run on every node."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from istbench.launch.lab import namespaces
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes
from istbench.launch.processes.place import ThisMachine
from istbench.node.registry import registered
from istbench.studies.conformance.training import open_workload, set_up, train

pytestmark = pytest.mark.processes

NODES, STEPS = 3, 6
SEND_ENOUGH = {
    **{
        name: {"local_steps": STEPS}
        for name in ("diloco", "ist", "local_sgd", "noloco", "streaming_diloco", "streaming_ist")
    },
    "sparseloco": {"local_steps": STEPS, "top": 4096},
}
"""Options of methods with which the bytes of some steps outweigh the headers of their messages."""


@dataclass(frozen=True)
class InNamespace(ThisMachine):
    """A loopback interface that carries nothing else: that of a network namespace."""

    namespace: str = ""

    def listening(self):
        return namespaces.inside(self.namespace)

    def enter(self, rank):
        namespaces.enter(self.namespace)
        super().enter(rank)


def carried():
    """Bytes that the loopback interface of this thread's namespace has carried."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    (loopback,) = (line.split() for line in lines if line.strip().startswith("lo:"))
    return int(loopback[9])


@pytest.fixture
def launcher():
    """Starts nodes in a namespace of the test's own."""
    if not shutil.which("ip"):
        pytest.skip("ip is not installed: it comes with iproute2")
    name = f"istbench-test-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here: needs root on Linux")
    try:
        namespaces.ip([f"-n {name} link set lo up"])
        yield LocalLauncher(place=InNamespace(namespace=name))
    finally:
        namespaces.ip([f"netns del {name}"])


def counted_and_carried(fabric, work):
    """Bytes that this node counts as sent while all nodes do `work`, and that all of them sent."""
    fabric.barrier()
    counted, before = fabric.traffic["training"].sent, carried()
    fabric.barrier()
    work()
    fabric.barrier()
    found = [fabric.traffic["training"].sent - counted, carried() - before]
    fabric.barrier()
    return found


def node_operations(fabric, size):
    """By operation of the fabric."""
    peer, source = (fabric.rank + 1) % NODES, (fabric.rank - 1) % NODES
    mine, parts = torch.ones(size), torch.ones(NODES * size)
    operations = {
        "all_reduce": lambda: fabric.all_reduce_mean(mine),
        "exchange": lambda: fabric.exchange({peer: mine}, {source: torch.empty(size)}),
        "exchange_async": lambda: fabric.exchange_async({peer: mine}, {source: torch.empty(size)}).wait(),
        "all_gather": lambda: fabric.all_gather_async(torch.empty(NODES * size), mine, "gathering").wait(),
        "reduce_scatter": lambda: fabric.reduce_scatter_mean_async(torch.empty(size), parts, "averaging").wait(),
        "broadcast": lambda: fabric.broadcast_async(mine, 2, "handing out").wait(),
    }
    fabric.prepare_exchange_async()
    return {name: counted_and_carried(fabric, work) for name, work in operations.items()}


def node_methods(fabric, methods):
    """By method, in some steps after as many."""
    toy, wider = (
        open_workload("toy", {"features": width, "hidden": width, "layers": 3, "batch_norm": True, "samples": 2048})
        for width in (384, 880)
    )
    wide = open_workload("amazon670k", {"hidden": 252, "features": 64, "labels": 600, "points": 4000})
    wide.batch_size = 1024
    found = {}
    for name in methods:
        few = name in SEND_ENOUGH
        softmax = name in ("dslide", "model_parallel", "sampled_softmax")
        workload = wider if few else wide if softmax else toy
        method = set_up(fabric, workload, name, SEND_ENOUGH.get(name, {}))
        train(fabric, workload, method, 0, STEPS)
        method.drain()

        def steps(workload=workload, method=method):
            train(fabric, workload, method, STEPS, 2 * STEPS)
            method.drain()

        found[name] = counted_and_carried(fabric, steps)
    return found


def shares(nodes):
    """Counted over carried bytes by name, and the counted ones."""
    found = {name: [sum(node[name][0] for node in nodes), nodes[0][name][1]] for name in nodes[0]}
    return {name: (counted / on_wire, counted) for name, (counted, on_wire) in found.items()}


@pytest.mark.parametrize(
    ("node", "what"),
    [(node_operations, 1_000_000), (node_methods, [own.name for own in registered("methods")])],
    ids=["operations", "methods"],
)
def test_counted_bytes_are_what_the_network_carried(launcher, node, what):
    # A busy machine makes TCP send some segments twice: the second measurement is asked where the first is short.
    found, again = shares(on_nodes(node, NODES, what, launcher=launcher)), {}
    if min(share for share, _ in found.values()) <= 0.97:
        again = shares(on_nodes(node, NODES, what, launcher=launcher))
    for name, (share, counted) in found.items():
        share = max(share, again.get(name, (share, counted))[0])
        assert counted > 4_000_000, (name, counted)
        assert 0.97 < share <= 1.0, (name, share)  # headers and acknowledgements of TCP are the rest
