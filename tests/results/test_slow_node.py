"""Which node of a run is slow."""

import pytest

from istbench.results.header import NodeSeconds
from istbench.results.slow_node import median_node_seconds, straggler


def nodes(*computing, train_s=40.0):
    return tuple(
        NodeSeconds(rank=rank, host=f"host{rank}", computing_s=seconds, waiting_s=train_s - seconds)
        for rank, seconds in enumerate(computing)
    )


def test_the_node_that_computes_longest_is_named_with_what_the_others_wait_for_it():
    found = straggler(nodes(20.0, 38.0, 22.0, 18.0))
    assert (found.slowest.host, found.fastest.host) == ("host1", "host3")
    assert found.waited_s == pytest.approx(18.0)
    assert found.waited == pytest.approx(18.0 / 40)
    assert found.speed == pytest.approx((1 / 38) / (1 / 20))
    assert found.speeds == pytest.approx((0.9, 18 / 38, 18 / 22, 1.0))
    balanced = 4 / sum(1 / seconds for seconds in (20.0, 38.0, 22.0, 18.0))
    assert found.saved == pytest.approx((38 - balanced) / 40)


def test_the_speed_of_a_node_is_that_of_its_share_of_the_work():
    found = straggler(nodes(10.0, 10.0, 20.0), (1, 1, 2))
    assert found.speeds == pytest.approx((1, 1, 1))
    assert found.speed == pytest.approx(1)
    assert found.saved == pytest.approx((20 - 40 / 3) / 40)


@pytest.mark.parametrize("computing", [(), (20.0,), (20.0, 20.0), (20.0, 21.9, 20.0), (0.0, 0.0)])
def test_nodes_within_a_tenth_of_the_median_are_alike(computing):
    assert straggler(nodes(*computing)) is None


def test_a_node_that_alone_computes_is_the_slow_one():
    assert straggler(nodes(0.0, 1.0, 0.0)).slowest.rank == 1


def test_seeds_are_put_together_by_rank():
    (first, second) = median_node_seconds([nodes(1.0, 9.0), nodes(3.0, 5.0), nodes(2.0, 7.0)])
    assert (first.computing_s, second.computing_s, second.waiting_s) == (2.0, 7.0, 33.0)
    assert median_node_seconds([]) == ()


def test_runs_that_ended_on_other_numbers_of_nodes_are_left_out():
    assert median_node_seconds([nodes(1.0, 9.0), nodes(3.0), nodes(3.0, 5.0)])[1].computing_s == 7.0
    assert straggler(nodes(1.0, 9.0, 1.0), shares=(1, 2)).speeds == straggler(nodes(1.0, 9.0, 1.0)).speeds
