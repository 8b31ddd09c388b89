"""Tables kept up with weights: on a schedule, with new functions, and over a checkpoint."""

import itertools
import math

import numpy as np
import pytest
from slide_problems import labels_of, normal

from istbench.methods.slide.active import active_sets
from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.hashing import Tables
from istbench.methods.slide.index import COMMON_EVERY, Index, RebuildSchedule
from istbench.methods.slide.kernels import RowOptimizer, Rule
from istbench.methods.slide.shard import OutputShard
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.threads import Threads


def steps_due(schedule, until):
    return [step for step in range(1, until + 1) if schedule.due(step)]


def test_a_fixed_interval():
    assert steps_due(RebuildSchedule(first=50, growth=0), 260) == [50, 100, 150, 200, 250]
    assert steps_due(RebuildSchedule(first=1, growth=0), 4) == [1, 2, 3, 4]


@pytest.mark.parametrize(("first", "growth"), [(50, 0.1), (3, 0.5), (1, 2.0), (7, 1e-6), (1, 0.01)])
def test_intervals_grow_by_a_factor(first, growth):
    ends = itertools.accumulate(first * math.exp(growth * place) for place in range(10_000))
    wanted = [math.ceil(end - 1e-9) for end in itertools.takewhile(lambda end: end <= 700, ends)]
    schedule = RebuildSchedule(first=first, growth=growth)
    assert steps_due(schedule, 700) == sorted(set(wanted))
    assert [schedule.rebuilds(step) for step in range(701)] == [
        sum(end <= step for end in wanted) for step in range(701)
    ]


ONE = Threads(1)
SIZE, WIDTH = 150, 16
EVERY_5 = RebuildSchedule(first=5, growth=0)


BIAS = normal(SIZE, seed=9)
HIDDEN = np.maximum(normal(40, WIDTH, seed=8), 0)


def index(weight, *, kind=SimHash, built=True, **options):
    chosen = {"functions": 4, "tables": 3, "schedule": EVERY_5, **options}
    kept = Index(kind, weight, BIAS[: len(weight)], ONE, **chosen, seed=2)
    if built:
        kept.build(HIDDEN)
    return kept


def same(one, other):
    return np.array_equal(one.rows, other.rows) and np.array_equal(one.starts, other.starts)


def test_tables_are_those_of_the_weights_at_the_last_rebuild():
    weight = normal(SIZE, WIDTH)
    kept = index(weight)
    old = Tables.build(kept.family, weight, ONE)
    weight[:] = normal(SIZE, WIDTH, seed=1)
    assert [kept.stepped(step, HIDDEN) for step in range(1, 5)] == [False] * 4
    assert same(kept.tables, old)
    assert kept.stepped(5, HIDDEN)
    assert same(kept.tables, Tables.build(kept.family, weight, ONE))


def test_new_functions_hash_all_rows():
    weight = normal(SIZE, WIDTH)
    kept = index(weight)
    first = kept.family
    kept.stepped(5, HIDDEN)
    assert (kept.family.features != first.features).any()
    assert same(kept.tables, Tables.build(kept.family, weight, ONE))


@pytest.mark.parametrize("kind", [SimHash, DWTA])
def test_active_rows_stay_as_many_when_all_rows_turn_away_from_the_hidden_vectors(kind):
    weight, hidden = normal(3000, 32), np.maximum(normal(60, 32, seed=8) + normal(32, seed=7), 0)
    kept = Index(kind, weight, normal(3000), ONE, target=100, common=7, schedule=EVERY_5, seed=2)
    kept.build(hidden)

    def size():
        codes, nobody = kept.codes(hidden), labels_of([[] for _ in hidden])
        return active_sets(nobody, 3000, ONE, tables=kept.tables, codes=codes).sizes.mean()

    assert size() == pytest.approx(100, rel=0.4)
    weight -= hidden.mean(axis=0)
    kept.tables = Tables.build(kept.family, weight, ONE)
    assert size() < 10
    assert kept.stepped(5, hidden)
    assert size() == pytest.approx(100, rel=0.4)
    wanted = np.argsort(-(weight @ hidden.mean(axis=0) + normal(3000)))[:7]
    assert kept.common.tolist() == sorted(wanted.tolist())


def test_common_rows_are_found_again_between_rebuilds():
    weight = normal(SIZE, WIDTH)
    kept = index(weight, common=9, schedule=RebuildSchedule(first=100, growth=0))
    weight *= -1
    found = []
    for step in range(1, COMMON_EVERY + 1):
        assert not kept.stepped(step, HIDDEN)
        found.append(kept.common.tolist())
    wanted = np.argsort(-(weight @ HIDDEN.mean(axis=0) + BIAS))[:9]
    assert found[-1] == sorted(wanted.tolist())
    assert all(before == found[0] != found[-1] for before in found[:-1])


def trained(shard, first, last):
    """The losses of steps from `first` to `last`."""
    labels, labelled = labels_of([[sample % 9] for sample in range(20)]), np.ones(20, bool)
    losses = []
    for step in range(first, last):
        hidden = np.maximum(normal(20, WIDTH, seed=step % 3), 0)
        whole = shard.forward(hidden, labels, shard.active(hidden, labels, step))
        losses.append(whole.loss(labelled))
        shard.backward(whole, labelled, 0.05)
        shard.index.stepped(step, hidden)
    return losses


OF_SHARD = {"functions": 0, "tables": 0, "target": 10, "common": 5}


def shard(weight, bias):
    optimizer = RowOptimizer(Rule.LAZY_ADAM, weight)
    kept = index(weight, **OF_SHARD)
    return OutputShard(weight, bias, optimizer, ONE, index=kept, random=8, seed=4)


def test_training_on_active_sets_lowers_the_loss_and_goes_on_exactly_from_a_state():
    whole = shard(normal(SIZE, WIDTH), normal(SIZE))
    losses = trained(whole, 1, 24)
    assert losses[-1] < losses[0] / 2
    part = shard(normal(SIZE, WIDTH), normal(SIZE))
    assert trained(part, 1, 13) == losses[:12]
    again = shard(part.weight.copy(), part.bias.copy())
    again.optimizer = part.optimizer
    again.index = index(again.weight, built=False, **OF_SHARD)
    again.index.load(**part.index.state())
    assert trained(again, 13, 24) == losses[12:]
    np.testing.assert_array_equal(again.weight, whole.weight)
    assert same(again.index.tables, whole.index.tables)
    assert again.index.rebuilds == whole.index.rebuilds == 4


def test_the_state_of_another_index_is_refused():
    kept, other = index(normal(SIZE, WIDTH)), index(normal(SIZE - 1, WIDTH))
    with pytest.raises(ValueError, match="another index"):
        kept.load(**other.state())
    with pytest.raises(ValueError, match="another index"):
        kept.load(**{**kept.state(), "functions": 3})


def test_random_rows_alone_need_no_index():
    weight, bias = normal(SIZE, WIDTH), normal(SIZE)
    sampled = OutputShard(weight, bias, RowOptimizer(Rule.SGD, weight), ONE, index=None, random=30, seed=1)
    labels, hidden = labels_of([[3], [149]]), normal(2, WIDTH)
    sets = sampled.active(hidden, labels, 1)
    assert sets.sizes.tolist() == [31, 31]
    assert sampled.active(hidden, labels, 2).rows.tolist() != sets.rows.tolist()
    labelled = np.ones(2, bool)
    whole = sampled.forward(hidden, labels, sets)
    assert sampled.backward(whole, labelled, 0.1).shape == (2, WIDTH)
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        sampled.backward(whole, labelled, 0.1)
