"""Active sets: true rows, rows of the buckets, random ones, each once; and the samples that use each row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slide_problems import labels_of, normal, rows_of, sets_of

from istbench.methods.slide.active import BLOCKS, ActiveSets, active_sets, inverted, no_labels, owned
from istbench.methods.slide.hashing import Tables
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.threads import Threads

FEW = 12
ROWS = st.lists(st.permutations(range(FEW)).flatmap(lambda rows: st.integers(0, FEW).map(lambda n: rows[:n])))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_pairs_are_by_row_and_by_sample_within_one(rows, data):
    true = [own[: data.draw(st.integers(0, len(own)))] for own in rows]
    pairs = inverted(sets_of(rows), labels_of(true), FEW)
    wanted = sorted((row, sample) for sample, own in enumerate(rows) for row in own)
    of_pairs = np.repeat(pairs.rows, np.diff(pairs.starts))
    assert list(zip(of_pairs.tolist(), pairs.samples.tolist(), strict=True)) == wanted
    assert (np.diff(pairs.starts) > 0).all()
    labels = [(row, sample) for sample, own in enumerate(true) for row in own]
    assert [wanted[pair] for pair in pairs.true] == labels
    assert (pairs.edges[0], pairs.edges[-1], len(pairs.edges)) == (0, len(pairs.rows), BLOCKS + 1)
    assert (np.diff(pairs.edges) >= 0).all()
    assert not pairs.logs.any()


def test_random_rows_alone_stand_for_more_than_themselves():
    sets = ActiveSets(
        np.array([3, 5]), np.array([7, 2, 4, 4, 7], np.int32), np.array([2, 1]), np.array([1.5, 2.5], np.float32)
    )
    pairs = inverted(sets, labels_of([[7], []]), FEW)
    assert np.repeat(pairs.rows, np.diff(pairs.starts)).tolist() == [2, 4, 4, 7, 7]
    assert pairs.samples.tolist() == [0, 0, 1, 0, 1]
    assert pairs.logs.tolist() == [0, 1.5, 0, 0, 2.5]


ONE = Threads(1)
SIZE, WIDTH = 203, 16
LABELS = labels_of([[5, 202, 0], [], [8], [7, 6], [1]] * 8)
FAMILY = SimHash(WIDTH, 5, 4, seed=1)
WEIGHT, HIDDEN = normal(SIZE, WIDTH), normal(40, WIDTH, seed=1)
CODES = FAMILY.codes(HIDDEN, ONE)


def labels_by_sample():
    return [rows.tolist() for rows in np.split(LABELS.rows, LABELS.ends[:-1])]


def test_true_rows_come_first_then_those_of_the_buckets_in_the_order_of_tables():
    of_rows = FAMILY.codes(WEIGHT, ONE)
    sets = active_sets(LABELS, SIZE, ONE, tables=Tables.build(FAMILY, WEIGHT, ONE), codes=CODES)
    for sample, (true, active) in enumerate(zip(labels_by_sample(), rows_of(sets), strict=True)):
        found = [row for table in range(4) for row in np.flatnonzero(of_rows[table] == CODES[table, sample])]
        assert active == list(dict.fromkeys(true + found))
    assert sets.found.tolist() == sets.sizes.tolist()
    assert 1 < sets.sizes.mean() < SIZE / 2


def test_the_largest_rows_count_as_found_where_a_bucket_has_them():
    """Random rows do not count, common ones do."""
    tables = Tables.build(FAMILY, WEIGHT, ONE)
    common = np.array([17, 80], np.int32)
    of_tables = {"tables": tables, "codes": CODES, "common": common, "seed": 5}
    largest = np.argsort(-(HIDDEN @ WEIGHT.T), axis=1)[:, :50]
    sets = active_sets(no_labels(len(HIDDEN)), SIZE, ONE, **of_tables, random=30)
    found = sets.have(largest)
    kept = rows_of(active_sets(no_labels(len(HIDDEN)), SIZE, ONE, **of_tables))
    wanted = [np.isin(rows, own) for rows, own in zip(largest, kept, strict=True)]
    np.testing.assert_array_equal(found, wanted)
    of_rows = FAMILY.codes(WEIGHT, ONE)
    for sample in range(len(HIDDEN)):
        there = (of_rows[:, largest[sample]] == CODES[:, sample, None]).any(axis=0)
        np.testing.assert_array_equal(found[sample], there | np.isin(largest[sample], common))


@pytest.mark.parametrize("random", [30, 150, SIZE, 10**9])
def test_random_rows_come_after_those_found(random):
    tables = Tables.build(FAMILY, WEIGHT, ONE)
    plain = active_sets(LABELS, SIZE, ONE, tables=tables, codes=CODES)
    sets = active_sets(LABELS, SIZE, ONE, tables=tables, codes=CODES, random=random, seed=4)
    np.testing.assert_array_equal(sets.sizes, np.minimum(plain.sizes + random, SIZE))
    np.testing.assert_array_equal(sets.found, plain.sizes)
    for one, other in zip(rows_of(plain), rows_of(sets), strict=True):
        assert other[: len(one)] == one
        assert len(set(other)) == len(other)


@pytest.mark.parametrize("random", [50, 150])
def test_random_rows_are_as_likely_as_each_other(random):
    counts = np.zeros(SIZE)
    for seed in range(50):
        sets = active_sets(labels_of([[3]] * 20), SIZE, ONE, random=random, seed=seed)
        counts += np.bincount(sets.rows, minlength=SIZE)
    others = np.delete(counts, 3)
    assert counts[3] == 1000
    wanted = 1000 * random / (SIZE - 1)
    deviation = np.sqrt(wanted * (1 - random / (SIZE - 1)))
    assert others.mean() == pytest.approx(wanted)
    assert np.abs(others - wanted).max() < 4.5 * deviation
    assert others.std() == pytest.approx(deviation, rel=0.2)


def test_random_rows_stand_for_all_that_are_not_found():
    tables = Tables.build(FAMILY, WEIGHT, ONE)
    exponentials, sums = np.exp(HIDDEN @ WEIGHT.T / 4), np.zeros(40)
    for seed in range(300):
        sets = active_sets(LABELS, SIZE, ONE, tables=tables, codes=CODES, random=20, seed=seed)
        for sample, rows in enumerate(rows_of(sets)):
            found = sets.found[sample]
            own = exponentials[sample, rows]
            sums[sample] += own[:found].sum() + np.exp(sets.logs[sample]) * own[found:].sum()
    np.testing.assert_allclose(sums / 300, exponentials.sum(axis=1), rtol=0.05)
    np.testing.assert_allclose(np.exp(sets.logs), (SIZE - sets.found) / 20, rtol=1e-6)
    whole = active_sets(LABELS, SIZE, ONE, tables=tables, codes=CODES, random=SIZE)
    assert not whole.logs.any()


def test_common_rows_are_in_every_set_after_the_true_ones():
    common = np.array([5, 9, 200], np.int32)
    tables = Tables.build(FAMILY, WEIGHT, ONE)
    plain = active_sets(LABELS, SIZE, ONE, tables=tables, codes=CODES)
    sets = active_sets(LABELS, SIZE, ONE, tables=tables, codes=CODES, common=common)
    for sample, (true, before, active) in enumerate(
        zip(labels_by_sample(), rows_of(plain), rows_of(sets), strict=True)
    ):
        assert active == list(dict.fromkeys([*true, *common.tolist(), *before[len(true) :]])), sample
    assert sets.found.tolist() == sets.sizes.tolist()


def test_a_table_without_functions_makes_every_row_active():
    family = SimHash(WIDTH, 0, 1, seed=0)
    tables = Tables.build(family, WEIGHT, ONE)
    sets = active_sets(LABELS, SIZE, ONE, tables=tables, codes=family.codes(HIDDEN, ONE))
    assert sets.sizes.tolist() == [SIZE] * 40


def test_seed_decides_and_threads_do_not():
    tables, two = Tables.build(FAMILY, WEIGHT, ONE), Threads(2)

    def drawn(threads, seed):
        return active_sets(LABELS, SIZE, threads, tables=tables, codes=CODES, random=60, seed=seed).rows.tolist()

    assert drawn(ONE, 1) == drawn(two, 1) == drawn(ONE, 1)
    assert drawn(ONE, 1) != drawn(ONE, 2)


def test_no_samples_have_no_rows():
    assert len(active_sets(labels_of([]), SIZE, ONE, random=5)) == 0


def test_a_node_owns_the_labels_of_its_rows_with_their_shares_of_the_whole_sample():
    ends, rows = np.array([3, 3, 4]), np.array([7, 2, 4, 5])
    own = owned(ends, rows, 4, 8)
    assert own.ends.tolist() == [2, 2, 3]
    assert own.rows.tolist() == [3, 0, 1]
    np.testing.assert_allclose(own.shares, [1 / 3, 1 / 3, 1])
    assert owned(ends, rows, 8, 9).ends.tolist() == [0, 0, 0]
