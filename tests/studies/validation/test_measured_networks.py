"""The networks of a validation are made before the first of its runs."""

import pytest

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.run import RunRequest
from istbench.cluster.profile import TCP_PAYLOAD, Rack, SharedHost
from istbench.launch.backends.backend import Screen
from istbench.launch.lab.network import ShapedNetwork
from istbench.studies.validation.measure import Validation, lab_profile


class Silent(Screen):
    """A screen without lines: the first one tells of training."""

    def note(self, text):
        pytest.fail("it trains before it has all networks")


def validation(nodes, **network):
    """A validation that may not train."""
    requests = [RunRequest(workload="toy", method="ddp", nodes=count) for count in nodes]
    return Validation(requests, ["1gbit"], repeats=1, seconds=1.0, latency_s=0.0, display=Silent(), **network)


@pytest.mark.parametrize(
    ("nodes", "network", "said"),
    [
        ((2, 4), {"racks": 2}, "racks and an uplink belong together"),
        ((4, 3), {"host_nodes": 2}, "hosts of 2 nodes do not divide 3 nodes"),
        ((4, 2), {"host_nodes": 2}, "2 nodes on one host have no link to shape"),
        ((4, 2), {"racks": 3, "uplink": 1e9}, "4 nodes leave one of 3 racks empty"),
    ],
)
def test_racks_and_hosts_are_refused_before_any_run(nodes, network, said):
    with pytest.raises(UserError, match=said):
        validation(nodes, **network).of_the_network()


def test_nodes_without_a_core_are_refused_before_any_run():
    with pytest.raises(UserError, match=f"at most {cores()} nodes with --scaling"):
        validation((cores() + 2,)).of_scaling()


def test_the_profile_of_a_lab_has_its_hosts_and_racks():
    network = ShapedNetwork(nodes=8, bandwidth=1e9, host_nodes=2, inside=5e9, racks=2, uplink=1e9)
    profile = lab_profile(network.lab, None, 1.0)
    assert profile.host == SharedHost(nodes=2, bandwidth=5e9, latency_s=0.0)
    assert profile.rack == Rack(hosts=2, uplink=1e9 * TCP_PAYLOAD)
    assert profile.bandwidth_out == 1e9 * TCP_PAYLOAD
