"""Labs: links really as slow as asked, and nothing left of them, however they end."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from istbench.base.errors import UserError
from istbench.base.machine import cores, own_cores
from istbench.base.options.run import LabHosts
from istbench.launch.lab import control_groups, late_frames, network
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes

try:
    network.check()
except UserError as reason:
    pytest.skip(str(reason), allow_module_level=True)
pytestmark = pytest.mark.usefixtures("only_lab")


def seconds_of_all_reduce(fabric, count):
    tensor = torch.ones(count)
    fabric.barrier()
    started = time.perf_counter()
    fabric.all_reduce_sum(tensor)
    assert tensor.sum() == count * fabric.world_size
    return time.perf_counter() - started


def seconds_to_the_other_rack(fabric, count):
    """Nodes 0 and 1 send to nodes 2 and 3, then node 0 alone."""
    tensor, seconds = torch.ones(count), []
    for senders in ({0, 1}, {0}):
        fabric.barrier()
        started = time.perf_counter()
        sends = {fabric.rank + 2: tensor} if fabric.rank in senders else {}
        receives = {fabric.rank - 2: tensor} if fabric.rank - 2 in senders else {}
        fabric.exchange(sends, receives)
        fabric.barrier()
        seconds.append(time.perf_counter() - started)
    return seconds


def seconds_inside_and_between_hosts(fabric, count):
    """Of exchanges: between nodes 0 and 1, then 0 and 2, then both nodes of each host with the other host."""
    tensor, seconds = torch.ones(count), []
    for nodes, distance in (((0, 1), 1), ((0, 2), 2), (range(4), 2)):
        fabric.barrier()
        started = time.perf_counter()
        if fabric.rank in nodes:
            other = fabric.rank ^ distance
            fabric.exchange({other: tensor}, {other: torch.empty(count)})
        fabric.barrier()
        seconds.append(time.perf_counter() - started)
    return seconds, namespace(), os.environ["LOCAL_WORLD_SIZE"]


def seconds_of_work(fabric):
    fabric.barrier()
    started, until = time.perf_counter(), time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    return time.perf_counter() - started


def node_sees(fabric):
    """The interfaces and network of a node, its cores, and the seconds for which its threads may keep one."""
    interfaces = [name for _, name in socket.if_nameindex()]
    with ThreadPoolExecutor(1) as pool:
        slices = time_slice(), pool.submit(time_slice).result()
    return interfaces, namespace(), [sorted(os.sched_getaffinity(0)), own_cores(), cores()], slices


def time_slice():
    """Seconds for which this thread may keep a core; 0 if the kernel decides."""
    found = network._attributes()
    return 0.0 if found is None else found[network._RUNTIME] / 1e9


def namespace():
    return str(Path("/proc/self/ns/net").readlink())


def traces_of_labs():
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    groups = [path.name for path in control_groups.GROUPS.glob("istbench-lab-*")]
    return [line for line in namespaces.splitlines() if "istbench-lab" in line] + groups


def test_a_link_carries_no_more_than_asked():
    place = ShapedNetwork(nodes=2, bandwidth=100e6)
    slow = on_nodes(seconds_of_all_reduce, 2, 1_000_000, launcher=LocalLauncher(place=place))
    # Each of two nodes sends 4 MB; what the buckets give for nothing is 256 kB an end.
    assert min(slow) > (4_000_000 - 2 * 256_000) * 8 / 100e6
    assert traces_of_labs() == []


def test_racks_share_an_uplink_and_two_senders_take_twice_as_long():
    place = ShapedNetwork(nodes=4, bandwidth=100e6, racks=2, uplink=100e6)
    assert place.lab.summary.startswith("links shaped to 100 Mbit/s, racks of 2 nodes with uplinks of 100 Mbit/s")
    slow = on_nodes(seconds_to_the_other_rack, 4, 1_000_000, launcher=LocalLauncher(place=place))
    both, alone = (max(seconds) / place.lab.dilation for seconds in zip(*slow, strict=True))
    # 4 MB and 8 MB through one uplink; the buckets of both ends of three links give 256 kB each.
    assert alone > (4_000_000 - 6 * 256_000) * 8 / 100e6
    assert both > (8_000_000 - 6 * 256_000) * 8 / 100e6
    assert both > 1.6 * alone
    assert traces_of_labs() == []


@pytest.mark.parametrize("latency_s", [0.0, 0.02])
def test_nodes_of_a_host_share_its_link_and_are_near(latency_s):
    place = ShapedNetwork(nodes=4, bandwidth=100e6, host_nodes=2, latency_s=latency_s)
    assert place.lab.hosts == LabHosts(nodes=2, bandwidth=1e9)
    assert place.lab.summary.startswith("links shaped to 100 Mbit/s, hosts of 2 nodes with 1 Gbit/s inside")
    try:
        found = on_nodes(seconds_inside_and_between_hosts, 4, 1_000_000, launcher=LocalLauncher(place=place))
    except UserError as reason:
        pytest.skip(str(reason))  # without control groups, or without netem and TUN
    seconds, namespaces, local = zip(*found, strict=True)
    inside, alone, both = (max(own) / place.lab.dilation for own in zip(*seconds, strict=True))
    # 4 MB and 8 MB each way through the hosts' links; the buckets of both ends give 256 kB each.
    assert alone > (4_000_000 - 2 * 256_000) * 8 / 100e6 + latency_s
    assert both > (8_000_000 - 2 * 256_000) * 8 / 100e6 + latency_s
    assert (4_000_000 - 1_000_000) * 8 / 1e9 < inside < alone / 2
    assert namespaces[0] == namespaces[1] != namespaces[2] == namespaces[3]
    assert set(local) == {"2"}
    assert traces_of_labs() == []


def round_trips_and_all_reduce(fabric, count):
    """Seconds until an answer of the other node has come, first as the kernel tells it; those of an all-reduce."""
    fabric.barrier()
    seconds = [fabric.transport.round_trip_s()]
    if fabric.rank:
        with socket.create_server(("", 5001)) as server:
            fabric.barrier()
            connection, _ = server.accept()
            with connection:
                while answer := connection.recv(1):
                    connection.sendall(answer)
    else:
        fabric.barrier()
        with socket.create_connection(("10.77.0.2", 5001)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(10):
                started = time.perf_counter()
                connection.sendall(b"x")
                assert connection.recv(1) == b"x"
                seconds.append(time.perf_counter() - started)
    return seconds, seconds_of_all_reduce(fabric, count)


@pytest.mark.parametrize("racks", [1, 2])
def test_packets_are_late_and_links_as_fast_as_asked(racks):
    uplink = 100e6 if racks > 1 else None
    place = ShapedNetwork(nodes=2, bandwidth=100e6, latency_s=0.02, racks=racks, uplink=uplink)
    launcher = LocalLauncher(place=place)
    try:
        ((told, *seconds), slow), _ = on_nodes(round_trips_and_all_reduce, 2, 1_000_000, launcher=launcher)
    except UserError as reason:
        pytest.skip(str(reason))  # without netem and TUN
    dilation = place.lab.dilation
    assert 0.04 <= min(seconds) / dilation < 0.06
    assert 0.04 <= told / dilation < 0.06
    assert slow / dilation > (4_000_000 - 2 * 256_000) * 8 / 100e6
    assert traces_of_labs() == []


def test_latency_without_netem_and_tun_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "has_netem", lambda: False)
    monkeypatch.setattr(late_frames, "_TUN", tmp_path / "tun")
    with (
        pytest.raises(UserError, match="needs netem or .*tun, and this kernel has neither; use --latency 0"),
        ShapedNetwork(nodes=2, bandwidth=1e9, latency_s=0.01).built(),
    ):
        pass


def test_racks_and_uplinks_belong_together():
    with pytest.raises(UserError, match="give lab --racks 2 --uplink 100mbit"):
        ShapedNetwork(nodes=4, bandwidth=1e9, racks=2)
    with pytest.raises(UserError, match="4 nodes leave one of 3 racks empty"):
        ShapedNetwork(nodes=4, bandwidth=1e9, racks=3, uplink=1e9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 5, "host_nodes": 2}, "hosts of 2 nodes do not divide 5 nodes; change --host-nodes"),
        ({"nodes": 4, "host_nodes": 4}, "4 nodes on one host have no link to shape; give fewer --host-nodes"),
        ({"nodes": 4, "inside": 1e9}, "give --host-nodes too"),
        ({"nodes": 4, "host_nodes": 2, "racks": 3, "uplink": 1e9}, "2 hosts leave one of 3 racks empty"),
    ],
)
def test_hosts_that_cannot_be_are_refused(given, said):
    with pytest.raises(UserError, match=said):
        ShapedNetwork(bandwidth=1e9, **given)


@functools.cache
def seen():
    """By what `node_sees`, that of each of two nodes."""
    place = ShapedNetwork(nodes=2, bandwidth=1e9)
    return list(zip(*on_nodes(node_sees, 2, launcher=LocalLauncher(place=place)), strict=True))


def test_every_node_has_a_network_of_its_own():
    interfaces, namespaces, *_ = seen()
    assert [sorted(own) for own in interfaces] == [["eth0", "lo"]] * 2
    assert len({*namespaces, namespace()}) == 3


@pytest.mark.skipif(cores() < 2, reason="two nodes share one core here")
def test_every_node_has_cores_of_its_own():
    _, _, (first, second), _ = seen()
    share = len(os.sched_getaffinity(0)) // 2
    assert len(first[0]) == len(second[0]) == first[1] == second[1] == share
    assert not set(first[0]) & set(second[0])
    assert first[2] == second[2] == cores()  # of the machine, to tell who else uses it


@pytest.mark.skipif(cores() < 2, reason="two nodes share one core here")
def test_threads_of_a_node_hand_its_core_over_at_once():
    *_, found = seen()
    if found == ([0, 0],) * 2:
        pytest.skip("this kernel has no time slices to ask for")
    assert found == ([1e-4, 1e-4],) * 2


def test_more_nodes_than_cores_are_dilated():
    nodes = 2 * cores()
    place = ShapedNetwork(nodes=nodes, bandwidth=1e9)
    try:
        control_groups.check()
    except UserError as reason:
        pytest.skip(str(reason))
    assert place.lab.dilation == pytest.approx(2 / 0.8)
    seconds = on_nodes(seconds_of_work, nodes, launcher=LocalLauncher(place=place))
    assert min(seconds) > 0.9 * 0.4


def test_a_killed_lab_takes_itself_down():
    script = (
        "from istbench.launch.lab.network import ShapedNetwork\nimport time\n"
        "with ShapedNetwork(nodes=2, bandwidth=1e9).built():\n print('built', flush=True)\n time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"built\n"
    assert len(traces_of_labs()) == 3
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The next one waits for that, whatever is left.
    with ShapedNetwork(nodes=2, bandwidth=1e9).built():
        pass
    assert traces_of_labs() == []


def test_names_that_a_crashed_lab_left_are_cleaned_up():
    subprocess.run(["ip", "netns", "add", "istbench-lab-hub"], check=True)
    subprocess.run(["ip", "netns", "add", "istbench-lab-7"], check=True)
    with ShapedNetwork(nodes=2, bandwidth=1e9).built():
        assert sorted(name.split()[0] for name in traces_of_labs()) == [
            "istbench-lab-0", "istbench-lab-1", "istbench-lab-hub",
        ]  # fmt: skip
    assert traces_of_labs() == []


def test_what_cannot_be_had_is_said(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="2 to 250 nodes"):
        ShapedNetwork(nodes=1, bandwidth=1e9)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install iproute2"):
        network.check()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="needs root"):
        network.check()
    assert Path("/proc/self/ns/net").exists()


def test_a_link_is_cut_or_slowed_and_whole_again():
    place = ShapedNetwork(nodes=2, bandwidth=1e9)

    def shown(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def rates():
        ends = [("istbench-lab-1", ()), ("istbench-lab-hub", ("dev", "port1"))]
        return [shown("tc", "-n", name, "qdisc", "show", *device).split("rate ")[1] for name, device in ends]

    with place.built():
        port = ("ip", "-n", "istbench-lab-hub", "link", "show", "port0")
        place.cut(0)
        assert "state DOWN" in shown(*port)
        place.cut(0, cut=False)
        assert "state DOWN" not in shown(*port)
        place.limit(1, 0.1)
        assert all(rate.startswith(f"{100 / place.lab.dilation:g}Mbit") for rate in rates())
        place.limit(1, 1.0)
        assert all(rate.startswith("1Gbit") for rate in rates()) or place.lab.dilation > 1
    with pytest.raises(UserError):
        place.cut(0)


LISTEN = """
import socket
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind(("", 9999))
heard.settimeout(2)
print(flush=True)
heard.recv(9)
"""
SEND = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('10.77.0.{}', 9999))"


def arrives(sender, receiver):
    """Whether a datagram of one host of the lab arrives at another."""

    def python(host, program):
        return ["ip", "netns", "exec", f"istbench-lab-{host}", sys.executable, "-c", program]

    with subprocess.Popen(python(receiver, LISTEN), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as listening:
        listening.stdout.readline()
        subprocess.run(python(sender, SEND.format(receiver + 1)), check=False)
    return listening.returncode == 0


def test_a_cut_link_passes_no_frame_either_way_also_with_latency():
    place = ShapedNetwork(nodes=2, bandwidth=1e9, latency_s=0.001)
    with place.built():
        ways = [(0, 1), (1, 0)]
        assert [arrives(*way) for way in ways] == [True, True]  # each knows the other's hardware address now
        place.cut(0)
        assert [arrives(*way) for way in ways] == [False, False]
        place.cut(0, cut=False)
        assert [arrives(*way) for way in ways] == [True, True]
