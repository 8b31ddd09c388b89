"""Minibatches: disjoint over nodes, a shared shuffle, nothing but a function of (seed, step, rank)."""

import itertools

import pytest
import torch

from istbench.workloads.batches import Begin, ShardedBatches


def deal(world_size, *, seed=0, train_size=103, batch_size=5):
    return [
        ShardedBatches(train_size, batch_size, rank=rank, world_size=world_size, seed=seed)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_nodes_draw_different_samples_and_an_epoch_repeats_none(world_size):
    nodes = deal(world_size)
    drawn = torch.cat([node.indices(step) for step in range(nodes[0].steps_per_epoch) for node in nodes])
    assert len(drawn.unique()) == len(drawn) == nodes[0].steps_per_epoch * 5 * world_size
    assert 103 - len(drawn) < 5 * world_size


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_nodes_minibatches_joined_are_one_process_with_a_larger_one(world_size):
    one = ShardedBatches(103, 5 * world_size, rank=0, world_size=1, seed=0)
    for step in range(2 * one.steps_per_epoch):
        joined = torch.cat([node.indices(step) for node in deal(world_size)])
        assert torch.equal(joined, one.indices(step))


def test_epochs_and_seeds_shuffle_differently_and_steps_need_no_history():
    (node,) = deal(1)
    epoch = node.steps_per_epoch
    assert not torch.equal(node.indices(0), node.indices(epoch))
    assert not torch.equal(node.indices(0), deal(1, seed=1)[0].indices(0))
    assert torch.equal(deal(1)[0].indices(epoch + 3), node.indices(epoch + 3))


def test_augmentation_differs_by_node_and_step():
    first, second = deal(2)
    draws = {float(torch.rand(1, generator=node.generator(step))) for node in (first, second) for step in (0, 1)}
    assert len(draws) == 4


def test_unequal_nodes_share_the_samples_of_each_step():
    samples = (2, 8, 5)
    nodes = [ShardedBatches(103, 5, rank=rank, world_size=3, seed=0, samples=samples) for rank in range(3)]
    one = ShardedBatches(103, 15, rank=0, world_size=1, seed=0)
    assert nodes[0].steps_per_epoch == one.steps_per_epoch
    for step in range(2 * one.steps_per_epoch):
        parts = [node.indices(step) for node in nodes]
        assert tuple(map(len, parts)) == samples
        assert torch.equal(torch.cat(parts), one.indices(step))


@pytest.mark.parametrize("sizes", [(4, 3, 4), (2, 4), (3, 1, 2)])
def test_a_smaller_and_a_larger_group_go_on_behind_the_last_sample(sizes):
    """Groups of other sizes take turns; an epoch loses no sample but a last part of a step, and repeats none."""
    begin, step, drawn = Begin(), 0, {}
    for turn in range(9):
        nodes = [
            ShardedBatches(103, 5, rank=rank, world_size=sizes[turn % len(sizes)], seed=0, begin=begin)
            for rank in range(sizes[turn % len(sizes)])
        ]
        for _ in range(3):
            epoch, before = nodes[0].place(step)
            found = drawn.setdefault(epoch, [])
            assert len(found) == before
            found += torch.cat([node.indices(step) for node in nodes]).tolist()
            step += 1
        begin = nodes[0].end(step)
        assert begin.samples == sum(map(len, drawn.values()))
    *whole, _ = drawn.values()
    assert len(whole) > 1
    for found in whole:
        assert len(set(found)) == len(found) > 103 - 5 * max(sizes)
    order = ShardedBatches(103, 103, rank=0, world_size=1, seed=0)
    for epoch, found in drawn.items():
        assert found == order.indices(epoch)[: len(found)].tolist()


def test_data_with_an_order_of_its_own_goes_on_too():
    nodes = [ShardedBatches(40, 2, rank=rank, world_size=3, seed=0, in_turn=True) for rank in range(3)]
    begin = nodes[0].end(5)
    more = [ShardedBatches(40, 2, rank=rank, world_size=4, seed=0, in_turn=True, begin=begin) for rank in range(4)]
    drawn = [node.indices(step).tolist() for step in range(5) for node in nodes]
    drawn += [node.indices(step).tolist() for step in (5, 6) for node in more]
    assert list(itertools.chain.from_iterable(drawn)) == [sample % 40 for sample in range(46)]
