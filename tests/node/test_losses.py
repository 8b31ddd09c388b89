"""Training losses: their mean, and the first that is not finite, by step and node."""

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from istbench.base.errors import RunFailed
from istbench.node.losses import Losses


class Together:
    """Nodes that are threads."""

    def __init__(self, count):
        self.barrier, self.values = Barrier(count), [0.0] * count

    def of(self, rank):
        outer = self

        class One:
            def numbers(self, value):
                outer.barrier.wait(10)
                outer.values[rank] = value
                outer.barrier.wait(10)
                return list(outer.values)

        return One()


def means(*losses, first=0, remedy=""):
    """What `Losses.mean` says on each node, by the losses of each; an error as its text."""
    together = Together(len(losses))

    def one(rank):
        mine = Losses(torch.device("cpu"))
        for loss in losses[rank]:
            mine.add(torch.tensor(loss))
        try:
            return mine.mean(together.of(rank), first, remedy)
        except RunFailed as error:
            return str(error)

    with ThreadPoolExecutor(len(losses)) as pool:
        return list(pool.map(one, range(len(losses))))


def test_the_mean_is_over_steps_and_nodes():
    assert means([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == [3.5, 3.5]


@pytest.mark.parametrize("steps", [1023, 1024, 1025, 5000])
def test_as_many_steps_as_there_may_be(steps):
    assert means([0.25] * steps) == [0.25]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_that_is_not_finite_is_named_by_step_and_node_on_every_node(bad):
    node_0 = [1.0] * 4 + [math.nan] * 5
    node_1 = [1.0] * 3 + [bad] + [math.nan] * 5
    wanted = f"the loss became {bad:g} at step 104 on node 1; turn it down"
    assert means(node_0, node_1, [1.0] * 9, first=100, remedy="; turn it down") == [wanted] * 3


def test_one_that_is_finite_again_is_named_too():
    ((said),) = means([1.0] * 2000 + [math.inf] + [1.0] * 100)
    assert said == "the loss became inf at step 2001 on node 0"


def test_infinities_of_both_signs_are_named():
    assert means([1.0, math.inf], [-math.inf, 1.0]) == ["the loss became -inf at step 1 on node 1"] * 2


def test_the_mean_weighs_ranks_by_their_samples():
    together = Together(2)

    def one(rank):
        mine = Losses(torch.device("cpu"), samples=(1, 3))
        for loss in ((8.0, 4.0), (2.0, 6.0))[rank]:
            mine.add(torch.tensor(loss))
        return mine.mean(together.of(rank), 0)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, range(2))) == [(6.0 * 1 + 4.0 * 3) / 4] * 2
