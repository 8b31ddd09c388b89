"""Nodes of a lab that compute slowly, before anything is built."""

import pytest

from istbench.base.errors import UserError
from istbench.launch.lab import network
from istbench.launch.lab.network import ShapedNetwork


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(network, "cores", lambda: 4)


def test_a_slow_node_gets_a_share_of_its_cores_and_the_others_all_of_theirs():
    place = ShapedNetwork(nodes=2, bandwidth=1e9, speeds=(1.0, 0.5))
    assert [place.core_limit(rank) for rank in range(2)] == [2.0, 1.0]  # of two cores each
    assert place.lab.dilation == 1
    assert place.lab.summary == "links shaped to 1 Gbit/s, speeds 1, 0.5"


def test_with_more_nodes_than_cores_it_gets_a_part_of_its_share():
    place = ShapedNetwork(nodes=8, bandwidth=1e9, speeds=(0.5, *[1.0] * 7))
    slow, *others = [place.core_limit(rank) for rank in range(8)]
    assert set(others) == {1 / place.lab.dilation}
    assert slow == others[0] / 2


def test_with_late_frames_each_node_gets_a_part_of_its_own_cores(monkeypatch):
    monkeypatch.setattr(network, "has_netem", lambda: False)
    place = ShapedNetwork(nodes=2, bandwidth=1e9, latency_s=0.01)
    assert place.lab.dilation > 1
    assert [place.core_limit(rank) for rank in range(2)] == [2 / place.lab.dilation] * 2


def test_equal_nodes_need_no_limit():
    assert [ShapedNetwork(nodes=2, bandwidth=1e9).core_limit(rank) for rank in range(2)] == [None, None]


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 2.0), (1.0, 0.0), (1.0, 1.0, 1.0)])
def test_other_speeds_are_refused_in_one_line(speeds):
    with pytest.raises(
        UserError, match="a lab of 2 nodes needs as many speeds, above 0 and at most 1; use --speeds"
    ):
        ShapedNetwork(nodes=2, bandwidth=1e9, speeds=speeds)
