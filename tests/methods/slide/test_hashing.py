"""Hash families and their tables: hand-worked codes, probabilities of agreeing, rows in their buckets."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from slide_problems import normal

from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.hashing import Tables, sort_by_code, tables_bytes
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.threads import Threads


@pytest.mark.parametrize("family", [SimHash(24, 5, 6, seed=1), DWTA(24, 2, 6, seed=1)])
def test_every_row_is_in_one_bucket_of_each_table_by_its_code(family):
    weight = normal(301, 24)
    tables = Tables.build(family, weight, ONE)
    codes = family.codes(weight, ONE)
    for rows, starts, own in zip(tables.rows, tables.starts, codes, strict=True):
        assert sorted(rows) == list(range(301))
        assert (starts[0], starts[-1]) == (0, 301)
        for code in range(family.buckets):
            bucket = rows[starts[code] : starts[code + 1]]
            assert bucket.tolist() == np.flatnonzero(own == code).tolist()


def test_threads_do_not_matter():
    family, weight, two = DWTA(24, 2, 6, seed=1), normal(301, 24), Threads(2)
    one, other = Tables.build(family, weight, ONE), Tables.build(family, weight, two)
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.starts, other.starts)


def test_bytes_are_known_before():
    family = DWTA(24, 2, 6, seed=1)
    tables = Tables.build(family, normal(301, 24), ONE)
    assert tables.bytes == tables_bytes(301, family.tables, family.functions, family.bits) == 4 * 6 * (301 + 65)
    # 50 tables over Amazon-670K: 134 MB of rows, and 52 MB to find 2^18 buckets in them.
    assert tables_bytes(670_091, 50, 6, 3) == 134_018_200 + 52_429_000


BUCKETS = 8
CODES = arrays.arrays(np.int32, st.integers(0, 60), elements=st.integers(0, BUCKETS - 1))


@settings(max_examples=60, deadline=None)
@given(CODES)
def test_rows_are_sorted_by_code_and_stay_in_order_within_one(codes):
    starts, rows = np.empty(BUCKETS + 1, np.int32), np.empty(len(codes), np.int32)
    sort_by_code(codes, starts, rows)
    np.testing.assert_array_equal(rows, np.argsort(codes, kind="stable"))
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(codes), np.arange(BUCKETS + 1)))


ONE = Threads(1)


def codes(family, *vectors):
    return family.codes(np.array(vectors, np.float32), ONE).T.tolist()


def dwta_of_two_bins():
    family = DWTA(16, 2, 1, seed=0)
    family.bins = np.arange(16, dtype=np.int32).reshape(2, 8)
    family.borrowed = np.array([[0, 1], [1, 0]], np.int32)
    return family


def test_dwta_packs_the_place_of_the_largest_of_every_bin_in_three_bits():
    first, second = [0, 0, 0, 0, 0, 9, 0, 0], [-5, -1, -2, -3, -4, -6, -7, -8]
    assert codes(dwta_of_two_bins(), first + second, second + first) == [[5 << 3 | 1], [1 << 3 | 5]]


def test_dwta_takes_the_first_of_equals_and_zero_before_what_is_negative():
    assert codes(dwta_of_two_bins(), [1, 7, 7, 0, 0, 0, 0, 7, -1, -1, -1, -1, 0, -1, -1, 0]) == [[1 << 3 | 4]]


def test_an_empty_bin_of_dwta_borrows_from_another_that_is_not_and_all_empty_are_zero():
    filled = [0, 0, 0, 0, 0, 0, 2, 0]
    found = codes(dwta_of_two_bins(), filled + 8 * [0], 8 * [0] + filled, 16 * [0], filled + filled)
    assert found == [[6 << 3 | 6], [6 << 3 | 6], [0], [6 << 3 | 6]]


def test_narrow_vectors_have_smaller_bins():
    family = DWTA(5, 3, 2, seed=0)
    assert (family.bits, family.buckets, family.bins.shape) == (2, 64, (6, 4))


def test_bins_of_a_table_share_no_entry_as_long_as_there_are_enough():
    for dealt in DWTA(64, 8, 4, seed=3).bins.reshape(4, 64):
        assert sorted(dealt) == list(range(64))
    for dealt in DWTA(128, 5, 4, seed=3).bins.reshape(4, 40):
        assert len(set(dealt)) == 40
    for dealt in DWTA(16, 3, 4, seed=3).bins.reshape(4, 24):
        assert len(set(dealt[:16])) == 16


def test_simhash_packs_the_sides_of_planes():
    family = SimHash(3, 2, 2, seed=0)
    family.features = np.array([[0, 1, 2, 0]] * 4, np.int32)
    family.signs = np.array([[1, 0, 0, 0], [-1, 1, 0, 0], [1, -1, 1, 0], [0, 0, -1, 0]], np.float32)
    # Sides of (2, 1, 3): 2, -1 and 4, -3; of (-1, 4, 0): -1, 5 and -5, 0, which is not above.
    assert codes(family, [2, 1, 3], [-1, 4, 0]) == [[0b10, 0b10], [0b01, 0b00]]


def test_planes_take_a_third_of_the_entries_each_once_by_both_signs():
    family = SimHash(128, 10, 30, seed=1)
    used = family.signs != 0
    assert set(used.sum(axis=1)) == {43}
    assert all(len(set(own[mine])) == 43 for own, mine in zip(family.features, used, strict=True))
    assert abs(family.signs.sum() / used.sum()) < 0.05


@pytest.mark.parametrize("angle", [0.3, 1.0, math.pi / 2, 2.5])
def test_simhash_agrees_with_probability_one_less_the_angle_over_pi(angle):
    random = np.random.default_rng(5)
    one, other = np.linalg.qr(random.standard_normal((128, 2)))[0].T
    turned = math.cos(angle) * one + math.sin(angle) * other
    family = SimHash(128, 1, 4000, seed=2)
    a, b = codes(family, one, turned)
    assert np.mean(np.equal(a, b)) == pytest.approx(1 - angle / math.pi, abs=0.035)


def test_dwta_agrees_in_an_eighth_of_bins_of_unrelated_vectors_and_more_of_near_ones():
    one, other = normal(2, 128, seed=1)
    family = DWTA(128, 1, 4000, seed=2)
    a, b, near = codes(family, one, other, one + other / 4)
    assert np.mean(np.equal(a, b)) == pytest.approx(1 / 8, abs=0.03)
    assert np.mean(np.equal(a, near)) > 0.5


@pytest.mark.parametrize("kind", [SimHash, DWTA])
def test_codes_depend_on_seed_and_vector_only(kind):
    vectors = np.maximum(normal(100, 48), 0)
    family, two = kind(48, 4, 5, seed=7), Threads(2)
    whole = family.codes(vectors, ONE)
    assert whole.shape == (5, 100)
    assert 0 <= whole.min() <= whole.max() < family.buckets
    np.testing.assert_array_equal(family.codes(vectors, two), whole)
    np.testing.assert_array_equal(family.codes(vectors[37:60], ONE), whole[:, 37:60])
    np.testing.assert_array_equal(kind(48, 4, 5, seed=7).codes(vectors, ONE), whole)
    assert (kind(48, 4, 5, seed=8).codes(vectors, ONE) != whole).any()


@pytest.mark.parametrize("kind", [SimHash, DWTA])
def test_no_functions_have_one_bucket(kind):
    family = kind(12, 0, 2, seed=0)
    assert family.buckets == 1
    assert not family.codes(normal(9, 12), ONE).any()


def test_what_cannot_be_hashed_is_refused():
    family = SimHash(8, 2, 2, seed=0)
    with pytest.raises(ValueError, match=r"float32 vectors \[n, 8\], not float32 \(3, 7\)"):
        family.codes(normal(3, 7), ONE)
    with pytest.raises(ValueError, match="float64"):
        family.codes(normal(3, 8).astype(np.float64), ONE)
    with pytest.raises(ValueError, match="11 times 3 bits is too long"):
        DWTA(128, 11, 1, seed=0)
