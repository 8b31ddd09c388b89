"""The bus bandwidth of an all-reduce of all hosts. Functions named `node_*` run on every node."""

from types import SimpleNamespace

import msgspec
import pytest
import ssh_hosts
from test_ssh_links import links

from istbench.base.errors import UserError
from istbench.base.options.texts import LONGEST_MESSAGE
from istbench.launch.hosts.answer_program import bus_bandwidth
from istbench.launch.hosts.group import HostGroup, Unfit
from istbench.launch.hosts.links import bus_words, check_gpus, measure_bus
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.remote_programs import BusBandwidth
from istbench.launch.processes.on_nodes import on_nodes

MEASURED = BusBandwidth(backend="gloo", nodes=4, bytes=2**20, seconds=0.1, right=True)


def node_measured(fabric):
    return msgspec.to_builtins(bus_bandwidth(fabric, 0.2))


def node_with_lost_values(fabric):
    """The measurement on nodes to which nothing comes but zeros."""
    fabric.all_reduce_mean = lambda tensor, name: tensor.div_(fabric.world_size)
    return msgspec.to_builtins(bus_bandwidth(fabric, 0.05))


@pytest.mark.processes
def test_processes_measure_an_all_reduce_and_check_its_values():
    found = on_nodes(node_measured, 3)
    assert all(own["right"] and own["backend"] == "gloo" and own["nodes"] == 3 for own in found)
    assert len({(own["bytes"], own["seconds"]) for own in found}) == 1
    assert not any(own["right"] for own in on_nodes(node_with_lost_values, 2))


def test_bus_bandwidth_counts_what_a_ring_sends():
    assert MEASURED.bits_per_s == pytest.approx(8 * 2**20 * 1.5 / 0.1)


def test_a_line_compares_it_with_the_slowest_link():
    rates = {("a", "b"): 0.14e9}
    state, line = bus_words(MEASURED, links("abcd", rates))
    assert (state, line) == (
        "ok",
        "all 4 nodes at once by gloo: bus bandwidth 126 Mbit/s (1 MiB in 0.1 s), 90% of the slowest link",
    )
    state, line = bus_words(MEASURED, links("abcd"))
    assert state == "slow"
    assert line.endswith("13% of the slowest link; name this rate as --bandwidth of `istbench estimate`")
    assert bus_words(MEASURED, []) == ("ok", line.partition(", 13%")[0])


class Answers:
    """A host that answers every request with `answer`, and keeps the arguments."""

    def __init__(self, name, answer, slots=1):
        self.name, self.host, self._answer = name, Host(name, slots), answer

    def ask(self, do, **arguments):
        self.asked = SimpleNamespace(do=do, **arguments)

    def answer(self, asked, timeout_s):
        return self._answer


def group(gpus):
    facts = {name: msgspec.structs.replace(ssh_hosts.GOOD, gpus=count) for name, count in gpus.items()}
    return HostGroup(facts=facts, clocks={}, addresses={name: f"10.0.0.{name}" for name in gpus}, port=77)


@pytest.mark.parametrize(("gpus", "device"), [({"a": 2, "b": 1}, "cuda"), ({"a": 1, "b": 1}, "cpu"), ({}, "cpu")])
def test_gpus_of_their_own_take_nccl_and_others_gloo(gpus, device):
    one = msgspec.to_builtins(MEASURED)
    hosts = [Answers("a", [one, one], slots=2), Answers("b", [one])]
    assert measure_bus(hosts, group({"a": 0, "b": 0}), gpus, 1.0) == MEASURED
    assert {host.asked.words[:2] for host in hosts} == {("all_reduce", device)}
    environments = [own for host in hosts for own in host.asked.environments]
    assert [(own["RANK"], own["LOCAL_RANK"], own["WORLD_SIZE"]) for own in environments] == [
        ("0", "0", "3"), ("1", "1", "3"), ("2", "0", "3"),
    ]  # fmt: skip
    assert {(own["MASTER_ADDR"], own["MASTER_PORT"]) for own in environments} == {("10.0.0.a", "77")}


@pytest.mark.parametrize(("slots", "threads"), [(2, "4"), (16, "1")])
def test_processes_of_a_host_share_its_cores(slots, threads):
    host = Answers("a", [msgspec.to_builtins(MEASURED)] * slots, slots)
    measure_bus([host], group({"a": 0}), {}, 1.0)
    assert [own["OMP_NUM_THREADS"] for own in host.asked.environments] == [threads] * slots


@pytest.mark.parametrize("wrong", [[msgspec.structs.replace(MEASURED, right=False)], []])
def test_a_host_with_other_values_than_the_mean_or_none_is_named(wrong):
    hosts = [Answers("a", msgspec.to_builtins([MEASURED])), Answers("b", msgspec.to_builtins(wrong))]
    with pytest.raises(Unfit, match="^b: an all-reduce of all hosts gives other values than the mean$"):
        measure_bus(hosts, group({"a": 0, "b": 0}), {}, 1.0)


def test_one_process_reduces_nothing():
    assert measure_bus([Answers("a", [])], group({"a": 0}), {}, 1.0) is None


def test_a_host_whose_gpus_copy_zeros_is_named():
    hosts = [
        Answers("a", [{"count": 2, "broken": ""}]),
        Answers("b", [{"count": 2, "broken": "cuda:0 to cuda:1 ..."}]),
    ]
    assert check_gpus(hosts[:1], group({"a": 2})) == {"a": 2}
    assert check_gpus(hosts, group({"a": 0, "b": 0})) == {}
    with pytest.raises(Unfit, match=r"^b: cuda:0 to cuda:1 \.\.\.$"):
        check_gpus(hosts, group({"a": 2, "b": 2}))
    with pytest.raises(UserError, match=r"^a: \[0\].broken"):
        check_gpus([Answers("a", [{"count": 2, "broken": "x" * (LONGEST_MESSAGE + 1)}])], group({"a": 2}))
